// The memory budget: settings of a training run, the bytes of each tenant on one rank, and the GPUs that hold them.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, grouped } = S;

  // --- Arithmetic. Pure, and equal to step_memory in course_utils/reference/memory_budget.py: the
  // tests compare the two, byte by byte. Doubles are exact below 2^53 bytes, which is 9 million GB.

  const PRECISIONS = { fp32: [4, 4], "bf16 mixed": [4, 2], bf16: [2, 2] };
  const OPTIMIZERS = { sgd: 0, momentum: 1, adam: 2, adamw: 2 };
  const DTYPES = { fp32: 4, bf16: 2 };

  const blockParameters = (C) => 12 * C * C + 13 * C;
  const parameterCount = ({ n_layer: L, n_embd: C, vocab: V, context: T, tied }) =>
    (V + T) * C + (tied ? 0 : V * C) + L * blockParameters(C) + 2 * C;

  const stepMemory = (s) => {
    const { n_layer: L, n_embd: C, n_head: H, vocab: V, context: T, batch: B, zero } = s;
    const [p, c] = PRECISIONS[s.precision];
    const mixed = s.precision === "bf16 mixed";
    const rows = B * T, width = rows * C, maps = B * H * T * T;
    const count = parameterCount(s);
    const shard = Math.ceil(count / s.world_size);
    const state = s.state_dtype ? DTYPES[s.state_dtype] : p;

    const core = s.attention === "flash" ? 4 * B * H * T : (4 + (c < 4 ? c : 0)) * maps;
    const outside = 2 * p * width + 16 * rows + 14 * c * width;
    let kept = outside + core, again = 0;
    if (s.checkpointing === "selective") {
      kept = outside;
      again = (s.attention === "flash" ? c * width : 3 * c * width) + core;
    } else if (s.checkpointing === "block") {
      kept = p * width;
      again = outside + core - p * width;
    }
    const rest = 16 * rows + 8 * T + (p + c) * width + 8 * rows + 4;

    const weights = mixed && zero < 3 ? 24 * C * C : 0;
    const whole = s.checkpointing === "block";
    if (whole) again += weights;
    const head = mixed && zero < 3 ? 2 * V * C : 0;
    const twice = s.tied ? 2 * p * V * C : 0;
    const block = blockParameters(C);
    const gathered = zero === 3 ? c * Math.max(block, count - L * block) : 0;
    return {
      parameters: p * (zero >= 3 ? shard : count),
      gradients: p * (zero >= 2 ? shard : count),
      optimizer_state: OPTIMIZERS[s.optimizer] * state * (zero >= 1 ? shard : count),
      weight_copies: (whole ? 0 : L * weights) + head,
      buffers: s.attention === "scores" ? T * T : 0,
      activations: L * kept + rest,
      logits: (c + 4) * rows * V,
      temporaries: Math.max(8 * rows * V, again, twice) + gathered,
    };
  };
  const sum = (memory) => Object.values(memory).reduce((a, b) => a + b, 0);

  S.budget = { parameterCount, stepMemory, sum };

  // --- The figure.

  const GIB = 2 ** 30;
  const TENANTS = {
    parameters: "parameters", gradients: "gradients", optimizer_state: "optimizer state",
    weight_copies: "bf16 copies of weights", buffers: "buffers", activations: "activations", logits: "logits",
    temporaries: "temporaries",
  };
  const size = (bytes) => {
    if (bytes < 1024) return `${bytes} B`;
    const k = Math.min(Math.floor(Math.log2(bytes) / 10), 5);
    const value = bytes / 1024 ** k;
    return `${value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][k]}`;
  };
  const short = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(2)} billion` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} million` : grouped(n));

  const mount = (root, data) => {
    const live = S.liveRegion();
    const settings = { ...data.settings };
    const { pills, slider, refresh } = S.controls(settings, change);
    const choice = (legend, key, options) => pills(legend, key, options.map(([value, text]) => [{ [key]: value }, text]));

    const total = h("span", { class: "total" });
    const note = h("p", { class: "note" });
    const bar = h("div", { class: "bar", role: "img" });
    const scale = h("div", { class: "scale", "aria-hidden": "true" });
    const chart = h("div", { class: "chart" }, bar, scale);
    const table = h("tbody", {});
    const gpus = h("ul", { class: "gpus" });

    function change(changes) {
      Object.assign(settings, changes);
      draw();
      const memory = stepMemory(settings);
      const room = data.gpus.filter(([, bytes]) => sum(memory) <= bytes).map(([name]) => name);
      live.say(`${size(sum(memory))} on each rank; ${room.length ? `fits on ${room.join(", ")}` : "fits on none of the GPUs"}.`);
    }

    function draw() {
      refresh();
      const memory = stepMemory(settings);
      const all = sum(memory);
      const { world_size: world } = settings;
      total.textContent = size(all);
      note.textContent = `${grouped(all)} bytes on ${world > 1 ? `each of ${world} ranks` : "one GPU"}, for ${short(parameterCount(settings))} parameters.`;
      const end = Math.max(all, ...data.gpus.filter(([, bytes]) => bytes <= Math.max(2 * all, data.gpus[0][1])).map(([, bytes]) => bytes)) * 1.03;
      const percent = (bytes) => `${(100 * bytes) / end}%`;
      bar.setAttribute("aria-label", `${size(all)}: ${Object.keys(TENANTS).map((key) => `${TENANTS[key]} ${size(memory[key])}`).join(", ")}`);
      bar.replaceChildren(...Object.keys(TENANTS).filter((key) => memory[key] > 0).map((key) =>
        h("span", { class: `part ${key}`, style: `width:${percent(memory[key])}`, title: `${TENANTS[key]}: ${size(memory[key])}` })));
      const lines = data.gpus.filter(([, bytes]) => bytes <= end);
      // Labels of lines near one another go one below the other, the leftmost lowest: no line crosses one.
      const runs = [];
      const near = 9000 / Math.max(width, 300); // 90 px, in percent of the bar
      for (const [name, bytes] of lines) {
        const at = (100 * bytes) / end, run = runs.at(-1);
        if (run && at - run.at(-1).at < near) run.push({ name, bytes, at });
        else runs.push([{ name, bytes, at }]);
      }
      scale.replaceChildren(...runs.flatMap((run) => run.map(({ name, bytes, at }, i) =>
        h("span", { class: `line${all <= bytes ? " room" : ""}${at > 78 ? " left" : ""}`, style: `left:${at}%;height:${58 + 18 * (run.length - 1 - i)}px` }, h("i", {}, name)))));
      const rows = Math.max(0, ...runs.map((run) => run.length - 1));
      chart.style.paddingBottom = `${22 + 18 * rows}px`;
      table.replaceChildren(...Object.keys(TENANTS).map((key) =>
        h("tr", {},
          h("th", { scope: "row" }, h("span", { class: `key ${key}`, "aria-hidden": "true" }), TENANTS[key]),
          h("td", {}, size(memory[key])), h("td", { class: "exact" }, grouped(memory[key])),
          h("td", {}, `${((100 * memory[key]) / all).toFixed(1)} %`))));
      gpus.replaceChildren(...data.gpus.map(([name, bytes]) => {
        const room = all <= bytes;
        return h("li", { class: room ? "yes" : "no" }, h("span", { class: "mark", "aria-hidden": "true" }, room ? "✓" : "✗"),
          h("span", {}, `${name}, ${(bytes / GIB).toFixed(1)} GiB: `, h("b", {}, room ? `fits, ${size(bytes - all)} left` : `too small by ${size(all - bytes)}`)));
      }));
    }

    root.append(
      h("style", {}, STYLE),
      h("div", { class: "figure" },
        h("div", { class: "controls" },
          pills("Model", "shape", Object.entries(data.shapes).map(([name, shape]) => [shape, name])),
          h("div", { class: "sliders" },
            slider("batch on each rank", "batch", data.choices.batch),
            slider("context", "context", data.choices.context),
            slider("layers", "n_layer", data.choices.n_layer),
            slider("ranks", "world_size", data.choices.world_size)),
          h("div", { class: "choices" },
            choice("Precision", "precision", [["fp32", "fp32"], ["bf16 mixed", "bf16 mixed"], ["bf16", "bf16"]]),
            choice("Optimizer", "optimizer", [["sgd", "SGD"], ["momentum", "momentum"], ["adamw", "AdamW"]]),
            choice("Its state", "state_dtype", [[null, "as the parameters"], ["fp32", "fp32"], ["bf16", "bf16"]]),
            choice("Checkpointing", "checkpointing", [["none", "none"], ["selective", "selective"], ["block", "every block"]]),
            choice("Attention", "attention", [["flash", "flash"], ["scores", "scores made"]]),
            choice("Head", "tied", [[true, "tied"], [false, "its own"]]),
            choice("ZeRO stage", "zero", [[0, "0"], [1, "1"], [2, "2"], [3, "3"]]))),
        h("div", { class: "block" }, h("h3", {}, total), note, chart),
        h("div", { class: "block two" },
          h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Bytes by tenant" }, h("table", {}, h("caption", { class: "hidden" }, "Bytes by tenant"), h("thead", {}, h("tr", {}, ["tenant", "size", "bytes", "share"].map((t) => h("th", { scope: "col" }, t)))), table)),
          gpus),
        live.node),
    );
    let width = bar.clientWidth;
    new ResizeObserver(() => {
      if (bar.clientWidth === width) return;
      width = bar.clientWidth;
      draw();
    }).observe(bar);
    draw();
  };

  const STYLE = `${S.controlsCss}
:host { --parameters: #1d5fa8; --gradients: #c0511a; --state: #14713a; --copies: #4b93d8; --buffers: #6b7684; --activations: #8a3fc4; --logits: #a8731a; --temporaries: #b02a20; }
:host([data-theme="dark"]) { --parameters: #6fb0f2; --gradients: #f29a63; --state: #6fd197; --copies: #3d79b8; --buffers: #8b97a5; --activations: #c394f5; --logits: #e6bd55; --temporaries: #ff8f85; }
.parameters { --tone: var(--parameters); } .gradients { --tone: var(--gradients); } .optimizer_state { --tone: var(--state); }
.weight_copies { --tone: var(--copies); } .buffers { --tone: var(--buffers); } .activations { --tone: var(--activations); }
.logits { --tone: var(--logits); } .temporaries { --tone: var(--temporaries); }
.sliders { --columns: 4; }
.choices { display: flex; flex-wrap: wrap; gap: 8px 22px; }
.block { border-bottom: 1px solid var(--line); }
.block:last-of-type { border-bottom: 0; }
.chart { position: relative; margin-top: 10px; }
.bar { display: flex; height: 44px; background: var(--panel); border-radius: 6px; overflow: hidden; }
.part { height: 100%; background: var(--tone); box-shadow: inset -1px 0 0 var(--paper); }
.scale { position: absolute; inset: 0; pointer-events: none; }
.line { position: absolute; top: 0; border-left: 2px solid var(--bad); box-shadow: -1px 0 0 var(--paper), 1px 0 0 var(--paper); font-size: 0.78em; color: var(--bad); white-space: nowrap; }
.line.room { border-color: var(--good); color: var(--good); }
.line i { position: absolute; top: 100%; left: -2px; padding-left: 4px; border-left: 2px solid currentColor; font-style: normal; line-height: 1.2; transform: translateY(-100%); }
.line.left i { left: auto; right: 0; padding: 0 4px 0 0; border-left: 0; border-right: 2px solid currentColor; }
.two { display: grid; grid-template-columns: minmax(0, 1.35fr) minmax(0, 1fr); gap: 20px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.92em; }
th, td { padding: 3px 8px 3px 0; text-align: right; white-space: nowrap; }
th[scope="row"], thead th:first-child { text-align: left; font-weight: 400; }
thead th { color: var(--muted); font-weight: 400; font-size: 0.88em; border-bottom: 1px solid var(--line); }
td { font-family: var(--mono); font-size: 0.92em; }
.key { display: inline-block; width: 12px; height: 12px; margin-right: 8px; border-radius: 3px; background: var(--tone); vertical-align: -1px; }
.gpus { list-style: none; display: grid; gap: 4px; align-content: start; font-size: 0.92em; }
.gpus li { display: flex; gap: 8px; } .gpus b { font-weight: 600; }
.yes .mark, .yes b { color: var(--good); } .no .mark, .no b { color: var(--bad); }
@container (max-width: 700px) {
  .two { grid-template-columns: minmax(0, 1fr); }
  .exact { display: none; } thead th:nth-child(3) { display: none; }
}
@media (forced-colors: active) { .part { forced-color-adjust: none; } }
`;

  S.define("memory_budget", mount);
})();
