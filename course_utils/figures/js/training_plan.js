// The training plan: parameters, tokens and a deadline; the GPUs, days, bytes and dollars that they take.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, grouped } = S;

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

  const short = (n) => {
    for (const [size, name] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]]) if (n >= size) return `${+(n / size).toPrecision(3)} ${name}`;
    return grouped(Math.round(n));
  };
  const span = (days) => (days >= 1 ? `${days.toFixed(1)} days` : `${(24 * days).toFixed(1)} hours`);

  const mount = (root, data) => {
    const live = S.liveRegion();
    const settings = { ...data.settings };
    const { pills, slider, refresh } = S.controls(settings, change);

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
      refresh();
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
          pills("GPU", "gpu", data.gpus.map(([name, peak, bytes]) => [{ peak_flops: peak, gpu_bytes: bytes }, name])),
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

  const STYLE = `${S.controlsCss}
.sliders { --columns: 3; }
table { border-collapse: collapse; margin-top: 8px; font-size: 0.95em; }
th, td { padding: 3px 16px 3px 0; text-align: left; font-weight: 400; }
td { font-family: var(--mono); }
`;

  S.define("training_plan", mount);
})();
