// Two or three shapes, aligned at their last axes: what is repeated, with which strides, and what comes out.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h } = S;

  // --- The rules. Pure; the tests compare them with torch.

  const MOST_AXES = 6, LARGEST = 9999;

  /** "2, 1, 3" as [2, 1, 3]; null where it is no shape. */
  const parse = (text) => {
    const inner = text.trim().replace(/^\((.*)\)$/s, "$1").replace(/,\s*$/, "").trim();
    if (inner === "") return [];
    const sizes = inner.split(",").map((part) => part.trim());
    if (sizes.length > MOST_AXES || !sizes.every((size) => /^\d+$/.test(size) && Number(size) <= LARGEST)) return null;
    return sizes.map(Number);
  };
  const write = (shape) => (shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`);
  /** Strides of a new tensor of this shape: a size of 0 counts as 1. */
  const strides = (shape) => {
    const found = [];
    let step = 1;
    for (const size of [...shape].reverse()) {
      found.unshift(step);
      step *= Math.max(size, 1);
    }
    return found;
  };
  /** Aligned shapes, the result (null on each axis that clashes) and each operand's strides in it. */
  const align = (shapes) => {
    const ndim = Math.max(0, ...shapes.map((shape) => shape.length));
    const aligned = shapes.map((shape) => [...Array(ndim - shape.length).fill(null), ...shape]);
    const result = Array.from({ length: ndim }, (_, axis) => {
      const sizes = new Set(aligned.map((shape) => shape[axis] ?? 1));
      sizes.delete(1);
      return sizes.size > 1 ? null : sizes.size ? [...sizes][0] : 1;
    });
    const steps = shapes.map((shape) => {
      const own = strides(shape);
      return result.map((size, axis) => {
        const at = axis - (ndim - shape.length);
        return at < 0 || shape[at] !== size ? 0 : own[at];
      });
    });
    return { ndim, aligned, result, steps, fits: !result.includes(null) };
  };

  S.broadcast = { parse, write, strides, align };

  // --- The figure.

  const NAMES = ["a", "b", "c"];

  const mount = (root, data) => {
    const live = S.liveRegion();
    const inputs = NAMES.map((name, i) =>
      h("input", { type: "text", value: data.shapes[i] ? data.shapes[i].join(", ") : "", "aria-label": `Shape of ${name}`, autocomplete: "off", spellcheck: "false", "data-shape": name, oninput: () => draw(true) }));
    const presets = data.examples.map(({ label, shapes }) =>
      h("button", { type: "button", onclick: () => {
          inputs.forEach((input, i) => (input.value = shapes[i] ? shapes[i].join(", ") : ""));
          draw(true);
        } }, label));
    const table = h("table", {});
    const verdict = h("p", { class: "verdict" });

    const used = () => inputs.map((input, i) => ({ name: NAMES[i], text: input.value, shape: parse(input.value) }))
      .filter(({ text }, i) => i < 2 || text.trim() !== "");

    const sentence = ({ aligned, result, steps, fits }, operands) => {
      const axes = result.flatMap((size, axis) => (size === null ? [axis] : []));
      if (!fits) {
        const axis = axes.at(-1);
        const sizes = [...new Set(aligned.map((shape) => shape[axis] ?? 1))].filter((size) => size !== 1);
        return `Axis ${axis - result.length}: the sizes ${sizes.join(" and ")} do not go together. Sizes other than 1 must be equal.`;
      }
      const views = operands.map(({ name }, i) => `${name} is read with strides ${write(steps[i])}`).join(", ");
      const count = result.reduce((product, size) => product * size, 1);
      return `The result is ${write(result)}: ${count.toLocaleString("en")} ${count === 1 ? "element" : "elements"}. ${views}; 0 repeats without storing.`;
    };

    function draw(speak) {
      const operands = used();
      inputs.forEach((input) => input.setAttribute("aria-invalid", String(parse(input.value) === null)));
      if (operands.some(({ shape }) => shape === null)) {
        table.replaceChildren();
        verdict.textContent = `A shape is up to ${MOST_AXES} sizes with commas between them, such as 4, 1, 3; nothing at all is the shape of a single number.`;
        verdict.className = "verdict bad";
        if (speak) live.say(verdict.textContent);
        return;
      }
      const found = align(operands.map(({ shape }) => shape));
      const { ndim, aligned, result, steps, fits } = found;
      const cell = (size, axis, i) => {
        const repeated = (size ?? 1) !== result[axis] && result[axis] !== null;
        const kind = result[axis] === null && (size ?? 1) !== 1 ? "clash" : repeated ? "repeated" : "";
        const step = fits ? h("span", { class: "step" }, `stride ${steps[i][axis]}`) : null;
        return h("td", { class: `${kind} ${size === null ? "absent" : ""}` }, size === null ? "(1)" : String(size), step);
      };
      table.replaceChildren(
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "axis"), ...result.map((_, axis) => h("th", { scope: "col" }, String(axis - ndim))))),
        h("tbody", {},
          ...operands.map(({ name, shape }, i) => h("tr", {}, h("th", { scope: "row" }, `${name} ${write(shape)}`), ...aligned[i].map((size, axis) => cell(size, axis, i)))),
          h("tr", { class: "result" }, h("th", { scope: "row" }, fits ? `result ${write(result)}` : "error"),
            ...result.map((size) => h("td", { class: size === null ? "clash" : "" }, size === null ? "✗" : String(size))))),
      );
      verdict.textContent = sentence(found, operands);
      verdict.className = fits ? "verdict" : "verdict bad";
      if (speak) live.say(verdict.textContent);
    }

    root.append(h("style", {}, STYLE), h("div", { class: "figure" },
      h("div", { class: "controls" },
        ...inputs.map((input, i) => h("label", {}, h("span", {}, i < 2 ? NAMES[i] : "c, if you like"), input)),
        h("div", { class: "line", role: "group", "aria-label": "Examples" }, ...presets)),
      h("div", { class: "block" }, h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The shapes, aligned" }, table), verdict),
      live.node));
    draw(false);
  };

  const STYLE = `
.controls { display: flex; flex-wrap: wrap; align-items: end; gap: 10px 16px; padding: 14px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
label { display: grid; gap: 2px; } label span { color: var(--muted); font-size: 0.9em; }
input { width: 9.5em; font-family: var(--mono); } input[aria-invalid="true"] { border-color: var(--bad); }
.line { display: flex; flex-wrap: wrap; gap: 6px; }
.block { padding: 14px 18px; } .scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 6px; }
th { font-weight: 500; text-align: right; white-space: nowrap; padding-right: 6px; } thead th { color: var(--muted); text-align: center; font-size: 0.9em; }
thead th:first-child { text-align: right; }
td { min-width: 62px; text-align: center; border: 1px solid var(--edge); border-radius: 7px; padding: 4px 6px; font-family: var(--mono); background: var(--tint); }
td.repeated { border-style: dashed; background: var(--paper); } td.absent { color: var(--muted); }
td.clash { border-color: var(--bad); background: var(--bad-tint); color: var(--bad); font-weight: 700; }
.step { display: block; font-size: 0.78em; color: var(--muted); }
.result th { font-weight: 650; } .result td { font-weight: 650; border-width: 2px; background: var(--good-tint); } .result td.clash { background: var(--bad-tint); }
.verdict { margin-top: 10px; padding: 8px 12px; background: var(--panel); border-left: 3px solid var(--accent); }
.verdict.bad { border-left-color: var(--bad); background: var(--bad-tint); }
@container (max-width: 480px) { .controls, .block { padding-inline: 12px; } td { min-width: 46px; } }
`;

  S.define("broadcast_explorer", mount);
})();
