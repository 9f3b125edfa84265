// Optimizers on a ravine: f = ½(u² + κ·v²), turned by an angle; the reader steps along a path or drags its start.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, svg } = S;

  // --- The arithmetic, one coordinate at a time, as in course_utils/reference/optimizers.py.

  /** Loss and gradient at (x, y): curvature 1 along the ravine, kappa across it, turned by `angle` degrees. */
  const loss = ({ kappa, angle }, [x, y]) => {
    const [c, s] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
    const [u, v] = [c * x + s * y, c * y - s * x];
    return { value: 0.5 * (u * u + kappa * v * v), gradient: [c * u - s * kappa * v, s * u + c * kappa * v] };
  };

  /** For each method its step: what is taken from a coordinate, given its gradient and its state. */
  const rules = {
    SGD: ({ lr }, g) => lr * g,
    momentum({ lr, beta1 }, g, state) {
      state.b = state.b === undefined ? g : beta1 * state.b + g;
      return lr * state.b;
    },
    Nesterov({ lr, beta1 }, g, state) {
      state.b = state.b === undefined ? g : beta1 * state.b + g;
      return lr * (g + beta1 * state.b);
    },
    AdaGrad({ lr, eps }, g, state) {
      state.s = (state.s ?? 0) + g * g;
      return (lr * g) / (Math.sqrt(state.s) + eps);
    },
    RMSProp({ lr, beta2, eps }, g, state) {
      state.v = beta2 * (state.v ?? 0) + (1 - beta2) * g * g;
      return (lr * g) / (Math.sqrt(state.v) + eps);
    },
    Adam({ lr, beta1, beta2, eps }, g, state, t) {
      state.m = beta1 * (state.m ?? 0) + (1 - beta1) * g;
      state.v = beta2 * (state.v ?? 0) + (1 - beta2) * g * g;
      const root = Math.sqrt(state.v / (1 - beta2 ** t));
      return ((lr * state.m) / (1 - beta1 ** t)) / (root + eps);
    },
  };

  /** All points of the path, the start included. */
  const path = (settings) => {
    let point = [...settings.start];
    const points = [point];
    const states = [{}, {}];
    for (let t = 1; t <= settings.steps; t++) {
      const { gradient } = loss(settings, point);
      point = point.map((p, i) => p - rules[settings.method](settings, gradient[i], states[i], t));
      points.push(point);
    }
    return points;
  };

  S.ravine = { loss, path };

  // --- The figure.

  const [WIDTH, HEIGHT, SCALE] = [600, 400, 100]; // 6 by 4 units, the minimum in the middle
  const USES = { SGD: [], momentum: ["beta1"], Nesterov: ["beta1"], AdaGrad: [], RMSProp: ["beta2"], Adam: ["beta1", "beta2"] };
  const LABELS = { beta1: { momentum: "momentum", Nesterov: "momentum", Adam: "β₁" }, beta2: { RMSProp: "alpha", Adam: "β₂" } };
  const px = (x) => WIDTH / 2 + SCALE * x;
  const py = (y) => HEIGHT / 2 - SCALE * y;
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const short = (value) => {
    if (!Number.isFinite(value) || Math.abs(value) >= 1e5) return value.toExponential(1);
    return Math.abs(value) < 0.001 && value !== 0 ? value.toExponential(1) : String(+value.toFixed(3));
  };
  const at = ([x, y]) => `(${short(x)}, ${short(y)})`;

  const mount = (root, data) => {
    const settings = { ...data.settings, start: [...data.settings.start] };
    let step = data.step;
    let points;
    let kept = null; // {points, name}: a path to compare with
    const live = S.liveRegion();

    const methods = h("fieldset", { class: "pills" }, h("legend", {}, "Optimizer"));
    for (const name of Object.keys(rules)) {
      const input = h("input", {
        type: "radio", name: "method", value: name, checked: name === settings.method,
        onchange: () => {
          settings.method = name;
          settings.lr = data.rates[name];
          update();
          announce();
        },
      });
      methods.append(h("label", { class: "pill" }, input, name));
    }

    /** A range with its label and the value in words; `values` are the positions it can take. */
    const slider = (label, key, values) => {
      const input = h("input", {
        type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": label,
        oninput: () => {
          settings[key] = values[Number(input.value)];
          update();
          announce();
        },
      });
      const name = h("span", {}, label);
      const output = h("span", { class: "mono" });
      const show = (shown, text) => {
        input.value = S.nearest(values, settings[key]);
        input.disabled = !shown;
        name.textContent = text;
        input.setAttribute("aria-label", text);
        input.setAttribute("aria-valuetext", String(settings[key]));
        output.textContent = shown ? String(settings[key]) : "–";
      };
      return { node: h("label", { class: "slider" }, h("span", { class: "head" }, name, output), input), show };
    };
    const sliders = {
      lr: slider("learning rate", "lr", data.choices.lr),
      beta1: slider("β₁", "beta1", data.choices.beta1),
      beta2: slider("β₂", "beta2", data.choices.beta2),
      kappa: slider("κ, across over along", "kappa", data.choices.kappa),
      angle: slider("turned by, in degrees", "angle", data.choices.angle),
    };

    const stepper = h("input", {
      type: "range", class: "steps", min: 0, max: settings.steps, step: 1, "aria-label": "step",
      oninput: () => go(Number(stepper.value)),
    });
    const back = h("button", { type: "button", "aria-label": "One step back", onclick: () => go(step - 1) }, "−1");
    const forward = h("button", { type: "button", "aria-label": "One step on", onclick: () => go(step + 1) }, "+1");
    const keep = h("button", { type: "button", onclick: () => {
      kept = kept ? null : { points: points.slice(0, step + 1), name: `${settings.method}, lr ${settings.lr}` };
      draw();
      live.say(kept ? `Kept for comparison: ${kept.name}.` : "The kept path is gone.");
    } }, "Keep this path");

    const contours = svg("g", { class: "contours" });
    const ghost = svg("polyline", { class: "ghost" });
    const trail = svg("polyline", { class: "trail" });
    const dots = svg("g", { class: "dots" });
    const now = svg("circle", { class: "now", r: 7 });
    const start = svg("g", {
      class: "start", tabindex: 0, role: "slider", "aria-label": "Start: arrow keys move it",
      "aria-valuemin": -3, "aria-valuemax": 3,
    }, svg("circle", { class: "grip", r: 22 }), svg("circle", { class: "ring", r: 10 }), svg("text", { y: -16, "text-anchor": "middle" }, "start"));
    const clip = svg("clipPath", { id: "inside" }, svg("rect", { width: WIDTH, height: HEIGHT }));
    const stage = svg("svg", { class: "stage", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": data.alt },
      clip,
      svg("g", { "clip-path": "url(#inside)" }, contours, ghost, trail, dots, now),
      svg("path", { class: "minimum", d: `M${px(0) - 6},${py(0)} h12 M${px(0)},${py(0) - 6} v12` }),
      start,
    );
    const facts = h("dl", { class: "facts" });
    const note = h("p", { class: "note" });

    root.append(
      h("style", {}, STYLE),
      h("div", { class: "figure" },
        h("div", { class: "controls" }, methods, h("div", { class: "sliders" }, ...Object.values(sliders).map((s) => s.node))),
        h("div", { class: "scene" }, stage),
        h("div", { class: "walk" }, back, stepper, forward, keep),
        h("div", { class: "readout" }, facts, note),
        h("p", { class: "help muted" }, "Drag the start or move it with the arrow keys (Shift for small moves). The cross is the minimum."),
        live.node,
      ),
    );

    // --- Drawing.

    /** Everything that depends on the settings, then what depends on the step. */
    function update() {
      points = path(settings);
      const uses = USES[settings.method];
      sliders.lr.show(true, "learning rate");
      for (const key of ["beta1", "beta2"])
        sliders[key].show(uses.includes(key), LABELS[key][settings.method] ?? (key === "beta1" ? "β₁ (not used)" : "β₂ (not used)"));
      sliders.kappa.show(true, "κ, across over along");
      sliders.angle.show(true, "turned by, in degrees");
      const turn = `rotate(${-settings.angle} ${px(0)} ${py(0)})`;
      contours.replaceChildren(
        ...[0.02, 0.1, 0.3, 0.7, 1.5, 3, 6, 12, 25, 50, 100, 200].reverse().map((level) =>
          svg("ellipse", {
            cx: px(0), cy: py(0), transform: turn,
            rx: SCALE * Math.sqrt(2 * level), ry: SCALE * Math.sqrt((2 * level) / settings.kappa),
          }),
        ),
      );
      const [x, y] = settings.start;
      start.setAttribute("transform", `translate(${px(x)} ${py(y)})`);
      start.setAttribute("aria-valuenow", short(x));
      start.setAttribute("aria-valuetext", `x ${short(x)}, y ${short(y)}`);
      draw();
    }

    const drawn = (list) => list.filter((p) => p.every(Number.isFinite)).map(([x, y]) => [clamp(px(x), -1e4, 1e4), clamp(py(y), -1e4, 1e4)]);

    function draw() {
      step = clamp(step, 0, settings.steps);
      stepper.value = step;
      stepper.setAttribute("aria-valuetext", `step ${step} of ${settings.steps}`);
      back.disabled = step === 0;
      forward.disabled = step === settings.steps;
      keep.textContent = kept ? "Drop the kept path" : "Keep this path";
      const walked = drawn(points.slice(0, step + 1));
      trail.setAttribute("points", walked.map((p) => p.join()).join(" "));
      ghost.setAttribute("points", kept ? drawn(kept.points).map((p) => p.join()).join(" ") : "");
      dots.replaceChildren(...walked.slice(1, -1).map(([cx, cy]) => svg("circle", { cx, cy, r: 2.6 })));
      const here = points[step];
      const [cx, cy] = walked.at(-1);
      now.setAttribute("cx", cx);
      now.setAttribute("cy", cy);
      const { value, gradient } = loss(settings, here);
      const row = (name, text) => [h("dt", {}, name), h("dd", { class: "mono" }, text)];
      facts.replaceChildren(
        ...row("step", `${step} of ${settings.steps}`), ...row("at", at(here)),
        ...row("loss", short(value)), ...row("gradient", at(gradient)),
      );
      note.textContent = remark(value);
      note.classList.toggle("bad", !(value < 1e3));
    }

    /** One sentence on what one sees. */
    function remark(value) {
      const compared = kept ? ` Dashed: ${kept.name}.` : "";
      if (!(value < 1e3)) return `It runs away: the rate is too high for the steep direction.${compared}`;
      const reached = points.findIndex((p) => loss(settings, p).value < 0.01);
      return (reached < 0 ? `Loss 0.01 is not reached in ${settings.steps} steps.` : `Loss 0.01 is reached at step ${reached}.`) + compared;
    }

    function go(to) {
      step = to;
      draw();
      announce();
    }

    function announce() {
      const { value } = loss(settings, points[step]);
      live.say(`${settings.method}, step ${step}: at ${at(points[step])}, loss ${short(value)}.`);
    }

    // --- The start: mouse, touch, keyboard.

    const place = (x, y) => {
      const round = (value) => Math.round(value * 100) / 100;
      settings.start = [clamp(round(x), -2.9, 2.9), clamp(round(y), -1.9, 1.9)];
      update();
    };
    let held = false;
    start.addEventListener("pointerdown", (event) => {
      held = true;
      start.setPointerCapture(event.pointerId);
      event.preventDefault();
      start.focus();
    });
    start.addEventListener("pointermove", (event) => {
      if (!held) return;
      const box = stage.getBoundingClientRect();
      place(
        (((event.clientX - box.left) / box.width) * WIDTH - WIDTH / 2) / SCALE,
        (HEIGHT / 2 - ((event.clientY - box.top) / box.height) * HEIGHT) / SCALE,
      );
    });
    for (const end of ["pointerup", "pointercancel"])
      start.addEventListener(end, () => {
        if (held) announce();
        held = false;
      });
    const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    start.addEventListener("keydown", (event) => {
      const move = MOVES[event.key];
      if (!move) return;
      event.preventDefault();
      const size = event.shiftKey ? 0.01 : 0.1;
      place(settings.start[0] + size * move[0], settings.start[1] + size * move[1]);
      announce();
    });

    update();
  };

  const STYLE = `
:host { --path: #b3470b; --ghost: #1d5fa8; --contour: #9fb0c2; }
:host([data-theme="dark"]) { --path: #ffb066; --ghost: #8cc0f5; --contour: #4d5c6c; }
.figure { container-name: ravine; }
.controls { display: grid; gap: 12px; padding: 14px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.pills { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; }
legend { float: left; margin-right: 8px; color: var(--muted); }
.pill {
  position: relative; display: inline-flex; align-items: center; min-height: 32px; padding: 2px 12px; border-radius: 16px;
  border: 1px solid var(--edge); background: var(--paper); font-size: 0.93em; cursor: pointer;
}
.pill:hover { border-color: var(--accent); background: var(--tint); }
.pill:has(:checked) { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.pill input { position: absolute; inset: 0; opacity: 0; margin: 0; cursor: pointer; }
.pill:has(:focus-visible) { outline: 3px solid var(--focus); outline-offset: 2px; }
.sliders { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px 20px; }
.slider { display: grid; font-size: 0.9em; }
.head { display: flex; justify-content: space-between; gap: 8px; }
input[type="range"] { width: 100%; padding: 0; accent-color: var(--accent); min-height: 28px; }
.scene { background: var(--paper); touch-action: pan-y; }
.stage { display: block; width: 100%; max-width: 720px; height: auto; margin-inline: auto; }
ellipse { fill: none; stroke: var(--contour); stroke-width: 1.2; }
.minimum { stroke: var(--ink); stroke-width: 2; }
.trail { fill: none; stroke: var(--path); stroke-width: 2.2; stroke-linejoin: round; }
.ghost { fill: none; stroke: var(--ghost); stroke-width: 2; stroke-dasharray: 6 5; }
.dots circle { fill: var(--path); }
.now { fill: var(--path); stroke: var(--paper); stroke-width: 2; }
.start { cursor: grab; touch-action: none; }
.start:active { cursor: grabbing; }
.grip { fill: transparent; }
.ring { fill: none; stroke: var(--ink); stroke-width: 2.5; }
.start:focus-visible { outline: none; }
.start:focus-visible .ring { stroke: var(--focus); stroke-width: 5; }
.start text { font: 600 14px/1 system-ui, sans-serif; fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
.walk { display: flex; gap: 8px; align-items: center; padding: 10px 18px; border-block: 1px solid var(--line); }
.walk .steps { flex: 1 1 80px; min-width: 60px; }
.readout { display: grid; grid-template-columns: minmax(0, max-content) minmax(200px, 1fr); gap: 6px 30px; padding: 12px 18px 6px; }
.facts { display: grid; grid-template-columns: max-content minmax(10em, 1fr); gap: 2px 14px; font-variant-numeric: tabular-nums; }
dt { color: var(--muted); }
.note.bad { color: var(--bad); }
.help { font-size: 0.88em; padding: 0 18px 14px; }
@container ravine (max-width: 620px) {
  .controls, .walk, .readout { padding-inline: 12px; }
  .readout { grid-template-columns: minmax(0, 1fr); }
  .walk { flex-wrap: wrap; }
  .start text { font-size: 22px; }
}
@media (forced-colors: active) { .pill:has(:checked) { border: 3px solid Highlight; } .trail { stroke: Highlight; } }
`;

  S.define("optimizer_ravine", mount);
})();
