// The training plan: parameters, tokens and a deadline; the GPUs, days, bytes and dollars that they take.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h } = S;

  // --- Arithmetic. Pure, and equal to plan_training in course_utils/reference/accounting.py: the tests
  // compare the two. GPUs and bytes are exact below 2^53; days and dollars are doubles on both sides.

  const DAY = 24 * 60 * 60;
  const planTraining = (s) => {
    const room = s.gpu_bytes - s.activations;
    if (room <= 0) return null;
    const state = s.bytes_per_parameter * s.n_parameters;
    const alone = (6 * s.n_parameters * s.n_tokens) / (s.peak_flops * s.mfu) / DAY;
    const memory = Math.ceil(state / room), deadline = Math.ceil(alone / s.max_days);
    const gpus = Math.ceil(Math.max(memory, deadline) / s.gpus_per_node) * s.gpus_per_node;
    return {
      gpus, days: alone / gpus, bytes: s.activations + Math.ceil(state / gpus),
      dollars: 24 * alone * s.dollars_per_hour, memory, deadline,
    };
  };
  S.plan = { planTraining };

  // --- The figure.

  const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  const short = (n) => {
    for (const [size, name] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]]) if (n >= size) return `${+(n / size).toPrecision(3)} ${name}`;
    return grouped(Math.round(n));
  };
  const span = (days) => (days >= 1 ? `${days.toFixed(1)} days` : `${(24 * days).toFixed(1)} hours`);

  const mount = (root, data) => {
    const live = S.liveRegion();
    const settings = { ...data.settings };
    const refresh = [];

    const slider = (label, key, values, text) => {
      const output = h("b", {});
      const input = h("input", {
        type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": label,
        oninput: () => change({ [key]: values[Number(input.value)] }),
      });
      refresh.push(() => {
        const nearest = values.reduce((best, v, i) => (Math.abs(v - settings[key]) < Math.abs(values[best] - settings[key]) ? i : best), 0);
        input.value = nearest;
        input.setAttribute("aria-valuetext", text(settings[key]));
        output.textContent = text(settings[key]);
      });
      return h("label", { class: "slider" }, h("span", { class: "head" }, h("span", {}, label), output), input);
    };

    const cards = h("fieldset", { class: "pills" }, h("legend", {}, "GPU"));
    for (const [name, peak, bytes] of data.gpus) {
      const input = h("input", { type: "radio", name: "gpu", value: name, onchange: () => change({ peak_flops: peak, gpu_bytes: bytes }) });
      refresh.push(() => { input.checked = settings.peak_flops === peak && settings.gpu_bytes === bytes; });
      cards.append(h("label", { class: "pill" }, input, name));
    }

    const total = h("span", { class: "total" });
    const note = h("p", { class: "note" });
    const table = h("tbody", {});

    function sentence(plan) {
      if (!plan) return "The activations alone fill this GPU.";
      return `${grouped(plan.gpus)} GPUs, ${span(plan.days)}, ${(plan.bytes / 1e9).toFixed(1)} GB on each, ${grouped(Math.round(plan.dollars))} dollars.`;
    }
    function change(changes) {
      Object.assign(settings, changes);
      draw();
      live.say(sentence(planTraining(settings)));
    }
    function draw() {
      for (const f of refresh) f();
      const plan = planTraining(settings);
      total.textContent = plan ? `${grouped(plan.gpus)} GPUs` : "no plan";
      if (!plan) {
        note.textContent = sentence(plan);
        table.replaceChildren();
        return;
      }
      const why = plan.memory > plan.deadline ? "Memory decides" : "The deadline decides";
      note.textContent = `${why}: the state needs ${grouped(plan.memory)}, the deadline ${grouped(plan.deadline)}; they come ${settings.gpus_per_node} to a node.`;
      const flops = 6 * settings.n_parameters * settings.n_tokens;
      table.replaceChildren(...[
        ["FLOPs, 6 · N · D", flops.toExponential(2)],
        ["time", span(plan.days)],
        ["bytes of each GPU", `${(plan.bytes / 1e9).toFixed(1)} of ${(settings.gpu_bytes / 1e9).toFixed(0)} GB`],
        ["price", `${grouped(Math.round(plan.dollars))} dollars`],
      ].map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))));
    }

    const { choices } = data;
    root.append(
      h("style", {}, STYLE),
      h("div", { class: "figure" },
        h("div", { class: "controls" },
          cards,
          h("div", { class: "sliders" },
            slider("parameters", "n_parameters", choices.n_parameters, short),
            slider("tokens", "n_tokens", choices.n_tokens, short),
            slider("deadline", "max_days", choices.max_days, (days) => `${days} days`),
            slider("utilization (MFU)", "mfu", choices.mfu, (share) => `${Math.round(100 * share)} %`),
            slider("activations on each", "activations", choices.activations, (bytes) => `${bytes / 1e9} GB`),
            slider("price of an hour", "dollars_per_hour", choices.dollars_per_hour, (price) => `${price.toFixed(2)} dollars`))),
        h("div", { class: "block" }, h("h3", {}, total), note,
          h("table", {}, h("caption", { class: "hidden" }, "What the plan takes"), table)),
        live.node),
    );
    draw();
  };

  const STYLE = `
.controls { display: grid; gap: 12px; padding: 16px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.pills { display: flex; flex-wrap: wrap; align-items: center; gap: 5px; }
.pills legend { float: left; padding: 0 6px 0 0; color: var(--muted); font-size: 0.9em; line-height: 30px; }
.pill { display: inline-flex; align-items: center; min-height: 30px; padding: 1px 10px; border: 1px solid var(--edge); border-radius: 15px; background: var(--paper); font-size: 0.9em; cursor: pointer; }
.pill input { position: absolute; opacity: 0; width: 1px; height: 1px; }
.pill:hover { border-color: var(--accent); background: var(--tint); }
.pill:has(input:checked) { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.pill:has(input:focus-visible) { outline: 3px solid var(--focus); outline-offset: 2px; }
.sliders { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 8px 20px; }
.slider { display: grid; } .slider .head { display: flex; justify-content: space-between; gap: 8px; font-size: 0.9em; color: var(--muted); }
.slider b { color: var(--ink); font-family: var(--mono); }
input[type="range"] { width: 100%; padding: 0; border: 0; background: none; accent-color: var(--accent); }
.block { padding: 14px 18px; }
.total { font: 700 1.5em/1.3 var(--mono); }
.note { color: var(--muted); overflow-wrap: anywhere; }
table { border-collapse: collapse; margin-top: 8px; font-size: 0.95em; }
th, td { padding: 3px 16px 3px 0; text-align: left; font-weight: 400; }
td { font-family: var(--mono); }
@container (max-width: 700px) {
  .sliders { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .controls, .block { padding-inline: 12px; }
}
@media (forced-colors: active) { .pill:has(input:checked) { border: 3px solid Highlight; } }
`;

  S.define("training_plan", mount);
})();
