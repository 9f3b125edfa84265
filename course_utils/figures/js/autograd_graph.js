// Autograd's graph, stepped forward and back: what each node computes, keeps, and hands on.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, svg, button } = S;

  // --- Arithmetic. Pure; the tests compare it with torch.
  // value: of the result. grads: by each input, for the gradient g by the result.
  // keeps: what the node saves for backward, given which inputs need a gradient.

  const OPS = {
    add: { sign: "+", node: "AddBackward0", value: (a, b) => a + b, grads: (g) => [g, g], keeps: () => [], rule: ["g", "g"] },
    sub: { sign: "−", node: "SubBackward0", value: (a, b) => a - b, grads: (g) => [g, -g], keeps: () => [], rule: ["g", "−g"] },
    mul: {
      sign: "×", node: "MulBackward0", value: (a, b) => a * b, grads: (g, [a, b]) => [g * b, g * a],
      keeps: ([first, second], [needsFirst, needsSecond]) => [...new Set([...(needsSecond ? [first] : []), ...(needsFirst ? [second] : [])])],
      rule: ["g · {1}", "g · {0}"],
    },
    square: { sign: "( )²", node: "PowBackward0", value: (a) => a * a, grads: (g, [a]) => [g * 2 * a], keeps: ([a]) => [a], rule: ["g · 2 {0}"] },
    exp: { sign: "exp", node: "ExpBackward0", value: (a) => Math.exp(a), grads: (g, _, y) => [g * y], keeps: (_, __, y) => [y], rule: ["g · {y}"] },
    relu: { sign: "relu", node: "ReluBackward0", value: (a) => Math.max(a, 0), grads: (g, _, y) => [y > 0 ? g : 0], keeps: (_, __, y) => [y], rule: ["g where {y} > 0, else 0"] },
    tanh: { sign: "tanh", node: "TanhBackward0", value: (a) => Math.tanh(a), grads: (g, _, y) => [g * (1 - y * y)], keeps: (_, __, y) => [y], rule: ["g · (1 − {y}²)"] },
  };

  /** Which names need a gradient: leaves that ask for one, and results of an input that does. */
  const needing = (example, asks) => {
    const needs = new Set(example.leaves.map((leaf) => leaf.name).filter((name) => asks[name]));
    for (const { name, inputs } of example.ops) if (inputs.some((input) => needs.has(input))) needs.add(name);
    return needs;
  };

  /** The steps: each operation forward, y.backward(), then each node that needs it, last first. */
  const steps = (example, asks) => {
    const needs = needing(example, asks);
    const forward = example.ops.map((op) => ({ phase: "forward", at: op.name }));
    const root = example.ops.at(-1).name;
    if (!needs.has(root)) return forward;
    const back = example.ops.filter((op) => needs.has(op.name)).reverse();
    return [...forward, { phase: "seed", at: root }, ...back.map((op) => ({ phase: "backward", at: op.name }))];
  };

  /** Everything after `done` steps: values, gradients with the parts that were added, what is kept. */
  const state = (example, leaves, asks, done) => {
    const needs = needing(example, asks);
    const by = Object.fromEntries(example.ops.map((op) => [op.name, op]));
    const values = { ...leaves }, grads = {}, kept = {}, sent = [];
    for (const { phase, at } of steps(example, asks).slice(0, done)) {
      const op = by[at], rule = OPS[op.op];
      const given = op.inputs.map((name) => values[name]);
      if (phase === "forward") {
        values[at] = rule.value(...given);
        if (needs.has(at)) kept[at] = rule.keeps(op.inputs, op.inputs.map((name) => needs.has(name)), at);
      } else if (phase === "seed") grads[at] = [1];
      else {
        const g = grads[at].reduce((a, b) => a + b, 0);
        rule.grads(g, given, values[at]).forEach((part, i) => {
          const to = op.inputs[i];
          if (!needs.has(to)) return;
          (grads[to] ??= []).push(part);
          sent.push({ from: at, to, slot: i, part });
        });
        kept[at] = [];
      }
    }
    return { values, grads, kept, sent, needs: [...needs] };
  };

  S.autograd = { OPS, needing, steps, state };

  // --- The figure.

  const W = 148, H = 62, COLUMN = 164, ROW = 98, PAD = 8;
  const sum = (parts) => parts.reduce((a, b) => a + b, 0);
  const number = (x) => {
    const text = Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : String(Number(x.toPrecision(4)));
    return text.replace("-", "−");
  };

  const mount = (root, data) => {
    const live = S.liveRegion();
    let chosen = data.start, done = 0, leaves = {}, asks = {};
    const example = () => data.examples[chosen];
    const total = () => steps(example(), asks).length;
    const choose = (index) => {
      chosen = index;
      done = 0;
      leaves = Object.fromEntries(example().leaves.map((leaf) => [leaf.name, leaf.value]));
      asks = Object.fromEntries(example().leaves.map((leaf) => [leaf.name, leaf.requires_grad]));
    };

    const first = button("|◀", "To the start", () => go(0));
    const back = button("◀", "One step back", () => go(done - 1));
    const next = button("Step ▶", "One step forward", () => go(done + 1), { class: "primary" });
    const middle = button("backward()", "To the start of backward", () => go(example().ops.length + 1));
    const last = button("▶|", "To the end", () => go(total()));
    const picker = h("select", { "aria-label": "Expression", onchange: (event) => {
        choose(Number(event.target.value));
        fields();
        draw();
        live.say(example().title);
      } }, ...data.examples.map((one, i) => h("option", { value: i }, one.title)));
    const inputs = h("div", { class: "line inputs", role: "group", "aria-label": "Leaves" });
    const where = h("p", { class: "where" }), what = h("p", { class: "what muted" });
    const board = h("div", { class: "board" });
    const facts = h("dl", { class: "facts" });

    function fields() {
      inputs.replaceChildren(...example().leaves.map(({ name }) =>
        h("div", { class: "leaf" },
          h("label", {}, h("span", { class: "mono" }, `${name} = `),
            h("input", { type: "number", step: "0.5", value: leaves[name], "data-leaf": name, oninput: (event) => {
                const value = event.target.valueAsNumber;
                if (!Number.isFinite(value) || Math.abs(value) > data.largest) return;
                leaves[name] = value;
                draw();
              } })),
          h("button", { type: "button", class: "asks", "aria-pressed": String(asks[name]), "data-asks": name, "aria-label": `${name} requires grad`,
            onclick: (event) => {
              asks[name] = !asks[name];
              event.currentTarget.setAttribute("aria-pressed", String(asks[name]));
              done = Math.min(done, total());
              draw();
              live.say(`${name} ${asks[name] ? "requires" : "does not require"} grad`);
            } }, "requires_grad"))));
    }
    const go = (to) => {
      done = Math.min(Math.max(to, 0), total());
      draw();
      live.say(`${where.textContent}. ${what.textContent}`);
    };

    const account = (now) => {
      const step = steps(example(), asks)[done - 1];
      if (!step) return "The leaves have values; nothing has been recorded.";
      const op = example().ops.find((one) => one.name === step.at), rule = OPS[op.op];
      if (step.phase === "seed") return `${step.at}.backward(): the gradient of ${step.at} by itself, 1, is handed to its node.`;
      if (step.phase === "forward") {
        const keeps = now.kept[step.at];
        if (!keeps) return `${step.at} = ${number(now.values[step.at])}. None of its inputs requires grad: no node is recorded.`;
        return `${step.at} = ${number(now.values[step.at])}. A node ${rule.node} is recorded; it ${keeps.length ? `keeps ${keeps.join(" and ")}` : "keeps nothing"}.`;
      }
      const g = number(sum(now.grads[step.at]));
      const fill = (text) => text.replaceAll("{0}", op.inputs[0]).replaceAll("{1}", op.inputs[1]).replaceAll("{y}", op.name);
      const parts = now.sent.filter((one) => one.from === step.at)
        .map((one) => `${one.to} gets ${fill(rule.rule[one.slot])} = ${number(one.part)}`);
      return `${rule.node}, g = ${g}: ${parts.join("; ")}. What it kept is freed.`;
    };

    const nodeOf = (name, now, step) => {
      const leaf = example().leaves.find((one) => one.name === name);
      const op = example().ops.find((one) => one.name === name);
      const [column, row] = example().places[name];
      const x = PAD + column * COLUMN, y = PAD + (rows() - 1 - row) * ROW;
      const value = now.values[name], needs = now.needs.includes(name);
      const grad = now.grads[name];
      const freed = !leaf && grad && !now.kept[name]?.length && now.sent.some((one) => one.from === name);
      const kept = now.kept[name] ?? [];
      const active = step && step.at === name;
      const lines = [
        svg("text", { x: x + 8, y: y + 18, class: "name" }, leaf ? name : `${name} = ${describe(op)}`),
        svg("text", { x: x + W - 8, y: y + 18, class: "value" }, value === undefined ? "" : number(value)),
        svg("text", { x: x + 8, y: y + 36, class: "node" }, leaf ? (needs ? "AccumulateGrad" : "no node") : value === undefined ? "" : needs ? OPS[op.op].node : "no node"),
      ];
      const below = leaf
        ? grad ? `.grad ${grad.length > 1 ? `${grad.map(number).join(" + ")} = ` : ""}${number(sum(grad))}` : needs ? ".grad None" : ""
        : grad ? `g = ${grad.length > 1 ? `${grad.map(number).join(" + ")} = ` : ""}${number(sum(grad))}` : kept.length ? `keeps ${kept.join(", ")}` : "";
      lines.push(svg("text", { x: x + 8, y: y + 53, class: grad ? "grad" : "kept" }, below));
      return svg("g", { class: `box${active ? " active" : ""}${needs ? " needs" : ""}${freed ? " freed" : ""}` },
        svg("rect", { x, y, width: W, height: H, rx: leaf ? 14 : 5 }), ...lines);
    };
    const describe = (op) => (op.inputs.length === 2 ? `${op.inputs[0]} ${OPS[op.op].sign} ${op.inputs[1]}` : op.op === "square" ? `${op.inputs[0]}²` : `${OPS[op.op].sign} ${op.inputs[0]}`);
    const rows = () => 1 + Math.max(...Object.values(example().places).map(([, row]) => row));
    const columns = () => 1 + Math.max(...Object.values(example().places).map(([column]) => column));

    const picture = () => {
      const now = state(example(), leaves, asks, done);
      const step = steps(example(), asks)[done - 1];
      const width = 2 * PAD + (columns() - 1) * COLUMN + W, height = 2 * PAD + (rows() - 1) * ROW + H;
      const at = (name) => {
        const [column, row] = example().places[name];
        return { x: PAD + column * COLUMN + W / 2, y: PAD + (rows() - 1 - row) * ROW };
      };
      const wires = [];
      for (const op of example().ops) {
        op.inputs.forEach((input, slot) => {
          const from = at(input), to = at(op.name);
          const shift = op.inputs.length === 2 ? (slot === 0 ? -22 : 22) : 0;
          const twin = op.inputs[0] === op.inputs[1] ? shift : 0;
          const x1 = from.x + twin, y1 = from.y, x2 = to.x + shift, y2 = to.y + H, bend = (y1 - y2) / 2;
          const recorded = now.values[op.name] !== undefined && now.needs.includes(input);
          const carried = now.sent.find((one) => one.from === op.name && one.slot === slot);
          const current = step && step.at === op.name && (step.phase === "forward" || carried);
          wires.push(svg("path", { d: `M ${x1} ${y1} C ${x1} ${y1 - bend}, ${x2} ${y2 + bend}, ${x2} ${y2}`,
            class: `wire${recorded ? " recorded" : ""}${carried ? " carried" : ""}${current ? " current" : ""}` }));
          if (carried) wires.push(svg("text", { x: x2 + (slot === 0 && shift ? -7 : 7), y: y2 + 15, class: slot === 0 && shift ? "part left" : "part" }, number(carried.part)));
        });
      }
      const names = [...example().leaves, ...example().ops].map((one) => one.name);
      const words = names.filter((name) => now.values[name] !== undefined)
        .map((name) => `${name} is ${number(now.values[name])}${now.grads[name] ? `, gradient ${number(sum(now.grads[name]))}` : ""}`);
      return { now, drawing: svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: `max-width:${Math.round(width * 1.1)}px`, "aria-label": `The graph of ${example().title}. ${words.join("; ")}.` },
        ...wires, ...names.map((name) => nodeOf(name, now, step))) };
    };

    function draw() {
      const { now, drawing } = picture();
      const all = steps(example(), asks), step = all[done - 1];
      const forward = example().ops.length, backward = all.length - forward;
      first.disabled = back.disabled = done === 0;
      next.disabled = last.disabled = done === all.length;
      middle.disabled = backward === 0;
      const phase = !step ? "Start" : step.phase === "forward" ? "Forward" : "Backward";
      where.replaceChildren(h("b", {}, phase), ` · step ${done} of ${forward} + ${backward}`);
      what.textContent = backward === 0 && done === all.length
        ? "No leaf requires grad, so nothing was recorded: backward() would raise."
        : account(now);
      board.replaceChildren(drawing);
      const kept = new Set(Object.values(now.kept).flat());
      const done_ = done === all.length && backward;
      const rowsOf = [
        ["kept for backward", kept.size ? [...kept].join(", ") : "nothing"],
        ["nodes recorded", String(Object.keys(now.kept).length)],
        ...(done_ ? example().leaves.filter((leaf) => asks[leaf.name]).map((leaf) => [`${leaf.name}.grad`, number(sum(now.grads[leaf.name] ?? [0]))]) : []),
      ];
      facts.replaceChildren(...rowsOf.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
    }

    const figure = h("div", { class: "figure", onkeydown: S.stepping(go, () => done, total) },
      h("div", { class: "controls" },
        h("div", { class: "line" }, picker),
        h("div", { class: "line", role: "group", "aria-label": "Steps" }, first, back, next, middle, last),
        inputs),
      h("div", { class: "block", tabindex: "0", role: "group", "aria-label": "The graph; arrow keys step" }, where, what, board),
      h("div", { class: "block" }, facts,
        h("p", { class: "muted help" }, "Round boxes are leaves. Change a value or whether it requires grad, and watch what is recorded and kept. Arrow keys step; Home and End jump.")),
      live.node);
    root.append(h("style", {}, STYLE), figure);
    choose(data.start);
    picker.value = String(data.start);
    fields();
    draw();
  };

  const STYLE = `
.controls { display: flex; flex-wrap: wrap; gap: 10px 22px; padding: 14px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.line { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; min-width: 0; }
.inputs { gap: 8px 18px; width: 100%; }
.leaf { display: flex; align-items: center; gap: 6px; }
.leaf input { width: 5.2em; }
select { max-width: 100%; }
.asks { font-family: var(--mono); font-size: 0.82em; }
.asks[aria-pressed="true"] { background: var(--tint); border-color: var(--accent); font-weight: 600; }
.asks[aria-pressed="false"] { text-decoration: line-through; }
.block { padding: 14px 18px; border-bottom: 1px solid var(--line); }
.block:last-of-type { border-bottom: 0; }
.what { min-height: 3em; }
.board { margin-top: 8px; }
svg { display: block; width: 100%; height: auto; margin-inline: auto; }
svg text { font-family: var(--mono); font-size: 13px; fill: var(--ink); }
.box rect { fill: var(--panel); stroke: var(--edge); }
.box.needs rect { fill: var(--tint); stroke: var(--accent); }
.box.freed rect { stroke-dasharray: 5 4; }
.box.active rect { stroke: var(--focus); stroke-width: 3; }
svg .value { text-anchor: end; font-weight: 700; }
svg .node, svg .kept { fill: var(--muted); font-size: 12px; }
svg .grad { fill: var(--good); font-weight: 700; font-size: 12px; }
.wire { fill: none; stroke: var(--line); stroke-width: 2; }
.wire.recorded { stroke: var(--edge); } .wire.carried { stroke: var(--good); stroke-width: 3; } .wire.current { stroke: var(--focus); stroke-width: 3; }
svg .part { font-size: 12px; fill: var(--good); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .part.left { text-anchor: end; }
.facts { display: grid; grid-template-columns: minmax(0, max-content) minmax(0, 1fr); gap: 3px 16px; }
dt { color: var(--muted); } dd { font-family: var(--mono); font-size: 0.92em; }
.help { font-size: 0.85em; margin-top: 8px; }
.figure { container-name: autograd; }
@container autograd (max-width: 560px) { .controls, .block { padding-inline: 12px; } .what { min-height: 4.5em; } }
`;

  S.define("autograd_graph", mount);
})();
