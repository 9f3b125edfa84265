// The stride explorer: the storage of a tensor, the views made of it, the address of each element.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, svg } = S;

  // --- Arithmetic. Pure, and equal to torch's: the tests compare the two on random operations.
  // A state is {shape, stride, offset, slots}: strides and offset count elements, slots the storage.

  const product = (sizes) => sizes.reduce((total, size) => total * size, 1);
  const tuple = (values) => `(${values.join(", ")}${values.length === 1 ? "," : ""})`;

  const contiguousStride = (shape) =>
    shape.map((_, axis) => product(shape.slice(axis + 1).map((size) => Math.max(size, 1))));

  const start = (shape) => ({
    shape: [...shape],
    stride: contiguousStride(shape),
    offset: 0,
    slots: product(shape),
  });

  const wrap = (axis, count, problem = `There is no axis ${axis} among ${count}.`) => {
    if (!Number.isInteger(axis) || axis < -count || axis >= count) throw new RangeError(problem);
    return axis < 0 ? axis + count : axis;
  };

  const operations = {
    transpose(view, a, b) {
      const { shape, stride } = view;
      [a, b] = [wrap(a, shape.length), wrap(b, shape.length)];
      [shape[a], shape[b]] = [shape[b], shape[a]];
      [stride[a], stride[b]] = [stride[b], stride[a]];
    },
    slice(view, axis, first, stop, step) {
      axis = wrap(axis, view.shape.length);
      const size = view.shape[axis];
      const clamp = (bound) => Math.min(Math.max(bound < 0 ? bound + size : bound, 0), size);
      step ??= 1;
      if (!(step > 0)) throw new RangeError("The step of a slice is 1 or more: torch has no negative steps.");
      first = clamp(first ?? 0);
      stop = Math.max(clamp(stop ?? size), first);
      view.offset += first * view.stride[axis];
      view.shape[axis] = Math.ceil((stop - first) / step);
      view.stride[axis] *= step;
    },
    select(view, axis, index) {
      axis = wrap(axis, view.shape.length);
      index = wrap(index, view.shape[axis], `Axis ${axis} has size ${view.shape[axis]}: there is no index ${index}.`);
      view.offset += index * view.stride[axis];
      view.shape.splice(axis, 1);
      view.stride.splice(axis, 1);
    },
    expand(view, axis, size) {
      axis = wrap(axis, view.shape.length);
      if (view.shape[axis] === size) return;
      if (view.shape[axis] !== 1)
        throw new RangeError(`Only an axis of size 1 expands: axis ${axis} has size ${view.shape[axis]}.`);
      view.shape[axis] = size;
      view.stride[axis] = 0;
    },
    unsqueeze(view, axis) {
      axis = wrap(axis, view.shape.length + 1);
      const stride = axis < view.shape.length ? view.shape[axis] * view.stride[axis] : 1;
      view.shape.splice(axis, 0, 1);
      view.stride.splice(axis, 0, stride);
    },
    squeeze(view, axis) {
      axis = wrap(axis, view.shape.length);
      if (view.shape[axis] !== 1) return;
      view.shape.splice(axis, 1);
      view.stride.splice(axis, 1);
    },
  };

  /** The state after `op`, e.g. ["transpose", 0, 1]; throws what the reader should be told. */
  const apply = (state, [name, ...args]) => {
    const view = { ...state, shape: [...state.shape], stride: [...state.stride] };
    operations[name](view, ...args);
    return view;
  };

  /** The operation as PyTorch, to be written behind the name of the tensor it is applied to. */
  const suffix = (state, [name, ...args]) => {
    const count = state.shape.length;
    const before = (axis) => ":, ".repeat(wrap(axis, count));
    if (name === "slice") {
      const [axis, first, stop, step] = args;
      return `[${before(axis)}${first ?? ""}:${stop ?? ""}${(step ?? 1) === 1 ? "" : `:${step}`}]`;
    }
    if (name === "select") return `[${before(args[0])}${args[1]}]`;
    if (name === "expand") {
      const axis = wrap(args[0], count);
      return `.expand(${state.shape.map((_, i) => (i === axis ? args[1] : -1)).join(", ")})`;
    }
    return `.${name}(${args.join(", ")})`;
  };

  const isContiguous = ({ shape, stride }) => {
    if (product(shape) === 0) return true;
    let expected = 1;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      if (shape[axis] === 1) continue; // never stepped along: any stride will do
      if (stride[axis] !== expected) return false;
      expected *= shape[axis];
    }
    return true;
  };

  const address = ({ stride, offset }, index) => index.reduce((slot, i, axis) => slot + i * stride[axis], offset);

  /** All indices of a shape, in row-major order. */
  const indices = (shape) =>
    shape.reduce((all, size) => all.flatMap((head) => Array.from({ length: size }, (_, i) => [...head, i])), [[]]);

  /** For each slot that the view reaches, the indices that lead there. */
  const reached = (state) => {
    const found = new Map();
    for (const index of indices(state.shape)) {
      const slot = address(state, index);
      found.set(slot, [...(found.get(slot) ?? []), index]);
    }
    return found;
  };

  S.explorer = { start, apply, suffix, isContiguous, address, indices, reached };

  // --- The figure.

  const LETTERS = ["i", "j", "k", "l"];
  const PRESETS = [[12], [3, 4], [2, 3, 4], [2, 2, 3, 2]];
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  const mount = (root, data) => {
    const { limits, itemsize } = data;
    const live = S.liveRegion();
    let shape = data.shape; // of x
    let ops = data.ops; // that make y
    let states; // states[n]: the view after n operations
    let view; // the last of them
    let slotsReached; // slot → indices
    let pinned; // {index} or {slot}: what the address panel shows when nothing is hovered
    let hovered = null;
    let slotWidth = 34;
    let chosen = "transpose";

    const name = (index) => (index.length ? `y[${index.join(", ")}]` : "y");
    const axisOption = (state, axis) =>
      h("option", { value: axis }, `axis ${axis} (${LETTERS[axis]}, size ${state.shape[axis]})`);

    // Fixed parts; each is filled by a draw function below.
    const part = (className, attributes = {}) => h("div", { class: className, ...attributes });
    const shapes = part("shapes", { role: "group", "aria-label": "Shape of x" });
    const form = h("form", { class: "operations", "aria-label": "Operation on y", novalidate: true });
    const problem = h("p", { class: "problem", "aria-hidden": "true" });
    const code = h("pre", { class: "expression", tabindex: 0, role: "group", "aria-label": "PyTorch expression" });
    const history = part("history");
    const undo = h("button", { type: "button", onclick: () => change(ops.slice(0, -1), "Undone. ") }, "Undo");
    const reset = h("button", { type: "button", onclick: () => change([], "Reset. ") }, "Reset");
    const table = part("axes");
    const facts = h("dl", { class: "facts" });
    const grid = part("grid", { role: "grid" });
    const formula = part("formula");
    const arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
    const strip = part("strip", { role: "group", "aria-label": "Storage: arrow keys move from slot to slot" });
    const tape = part("tape");
    history.append(undo, reset);
    tape.append(arcs, strip);

    root.append(
      h("style", {}, STYLE),
      h(
        "div",
        { class: "figure" },
        h(
          "div",
          { class: "controls" },
          h("div", { class: "block" }, h("p", { class: "heading" }, "Start with x"), shapes),
          h("div", { class: "block" }, h("p", { class: "heading" }, "Make a view y"), form, problem),
        ),
        h("div", { class: "made" }, code, history),
        h(
          "div",
          { class: "views" },
          h("div", { class: "block" }, h("p", { class: "heading" }, "The view y"), h("div", { class: "scroll" }, grid)),
          h("div", { class: "block numbers" }, table, facts),
        ),
        h(
          "div",
          { class: "memory" },
          h("p", { class: "heading" }, "The storage"),
          formula,
          h("div", { class: "scroll", }, tape),
          h(
            "p",
            { class: "help muted" },
            "Point at an element or a slot, tap it, or move with the arrow keys. Hatched slots are not reached by y.",
          ),
        ),
        live.node,
      ),
    );

    // --- Changing the shape and the operations.

    const refuse = (message) => {
      problem.textContent = message;
      live.say(message);
    };

    /** Rebuild everything for these operations; the element in focus is followed to its new index. */
    function change(newOps, lead = "", newShape = shape) {
      const slot = view && newShape === shape ? (current().slot ?? address(view, current().index)) : undefined;
      const list = [start(newShape)];
      for (const op of newOps) list.push(apply(list.at(-1), op));
      const next = list.at(-1);
      if (next.shape.length > limits.axes) throw new RangeError(`The figure draws at most ${limits.axes} axes.`);
      if (product(next.shape) > limits.elements)
        throw new RangeError(`The figure draws at most ${limits.elements} elements; this has ${product(next.shape)}.`);
      [shape, ops, states, view] = [newShape, newOps, list, next];
      slotsReached = reached(view);
      hovered = null;
      pinned = follow(slot);
      problem.textContent = "";
      drawShapes();
      drawForm();
      drawNumbers();
      drawGrid();
      drawStrip();
      point();
      const kind = isContiguous(view) ? "contiguous" : "not contiguous";
      if (lead)
        live.say(`${lead}y has shape ${tuple(view.shape)}, stride ${tuple(view.stride)}, offset ${view.offset}: ${kind}.`);
    }

    const follow = (slot) => {
      if (slotsReached.has(slot)) return { index: slotsReached.get(slot)[0] };
      if (slot === undefined && product(view.shape))
        return { index: view.shape.map((size, axis) => (axis ? Math.min(1, size - 1) : size - 1)) };
      return { index: view.shape.map(() => 0), slot: product(view.shape) ? undefined : 0 };
    };
    const current = () => hovered ?? pinned;

    const attempt = (action) => {
      try {
        action();
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        refuse(error.message);
      }
    };

    // --- Drawing: the shape of x.

    const reshape = (newShape, focus) =>
      attempt(() => {
        if (product(newShape) > limits.slots)
          throw new RangeError(`${tuple(newShape)} has ${product(newShape)} elements; the strip has room for ${limits.slots}.`);
            change([], `x has shape ${tuple(newShape)}. `, newShape);
        if (focus) (shapes.querySelector(focus) ?? shapes.querySelector("input")).focus();
      });

    function drawShapes() {
      const sizes = shape.map((size, axis) =>
        h("input", {
          type: "number",
          min: 1,
          max: limits.size,
          value: size,
          "aria-label": `Size of axis ${axis} of x`,
          "data-size": axis,
          onchange: (event) => {
            const wanted = Number(event.target.value);
            if (!Number.isInteger(wanted) || wanted < 1 || wanted > limits.size) {
              event.target.value = shape[axis];
              refuse(`Sizes here go from 1 to ${limits.size}.`);
              return;
            }
            reshape(shape.with(axis, wanted), `[data-size="${axis}"]`);
            event.target.value = shape[axis];
          },
        }),
      );
      shapes.replaceChildren(
        h("span", { class: "sizes" }, "(", ...sizes.flatMap((size, axis) => (axis ? [", ", size] : [size])), ")"),
        h(
          "span",
          { class: "together" },
          h(
            "button",
            {
              type: "button",
              "aria-label": "Remove the last axis of x",
              disabled: shape.length === 1,
              "data-fewer": true,
              onclick: () => reshape(shape.slice(0, -1), "[data-fewer]:enabled"),
            },
            "−",
          ),
          h(
            "button",
            {
              type: "button",
              "aria-label": "Add an axis to x",
              disabled: shape.length === limits.axes,
              "data-more": true,
              onclick: () => reshape([...shape, product(shape) * 2 > limits.slots ? 1 : 2], "[data-more]:enabled"),
            },
            "+",
          ),
        ),
        h(
          "span",
          { class: "presets" },
          ...PRESETS.map((preset) =>
            h(
              "button",
              {
                type: "button",
                class: "preset mono",
                "aria-pressed": String(String(preset) === String(shape)),
                "data-preset": preset.join(),
                onclick: () => reshape(preset, `[data-preset="${preset.join()}"]`),
              },
              tuple(preset),
            ),
          ),
        ),
      );
    }

    // --- Drawing: the operation. Each entry: its fields, made for the present view, and the op they spell.

    const select = (label, options, value) => {
      const node = h("select", {}, options);
      if (value !== undefined) node.value = value;
      return { label, node, read: () => Number(node.value) };
    };
    const number = (label, value, placeholder) => {
      const node = h("input", { type: "number", step: 1, placeholder, value, size: 4 });
      const read = () => {
        if (node.validity.badInput || !/^-?\d*$/.test(node.value)) throw new RangeError(`${label} is a whole number.`);
        return node.value === "" ? null : Number(node.value);
      };
      return { label, node, read };
    };
    const required = (field) => ({
      ...field,
      read: () => {
        const value = field.read();
        if (value === null) throw new RangeError(`Give a value for “${field.label}”.`);
        return value;
      },
    });
    const axes = (keep = () => true) => view.shape.flatMap((size, axis) => (keep(size) ? [axisOption(view, axis)] : []));
    const ones = () => axes((size) => size === 1);

    const FIELDS = {
      transpose: () => view.shape.length > 1 && [select("swap", axes(), 0), select("with", axes(), 1)],
      slice: () =>
        view.shape.length > 0 && [
          select("along", axes(), view.shape.length - 1),
          number("start", "", "0"),
          number("stop", "", "end"),
          number("step", 2, "1"),
        ],
      select: () => view.shape.length > 0 && [select("along", axes()), required(number("index", 0))],
      expand: () => ones().length > 0 && [select("stretch", ones()), required(number("to size", 3))],
      unsqueeze: () =>
        view.shape.length < limits.axes && [
          select("new axis at", [...view.shape, 0].map((_, axis) => h("option", { value: axis }, axis))),
        ],
      squeeze: () => ones().length > 0 && [select("drop", ones())],
    };
    const WHY_NOT = {
      transpose: "Transposing needs two axes.",
      slice: "A single number has no axis to slice.",
      select: "A single number has no axis to select from.",
      expand: "Only an axis of size 1 expands: slice one down to 1 (0:1) or unsqueeze one first.",
      unsqueeze: "The figure draws at most four axes.",
      squeeze: "Only an axis of size 1 can be dropped: there is none.",
    };

    function drawForm() {
      const inForm = form.contains(root.activeElement) ? root.activeElement.getAttribute("data-focus") : null;
      const fields = FIELDS[chosen]();
      for (const field of fields || []) field.node.dataset.focus = field.label;
      const button = h("button", { type: "submit", class: "primary", "data-focus": "apply" });
      const read = () => [chosen, ...fields.map((field) => field.read())];
      const preview = () => {
        try {
          button.replaceChildren("Apply ", h("code", {}, suffix(view, read())));
        } catch {
          button.replaceChildren("Apply");
        }
      };
      const pills = Object.keys(FIELDS).map((kind) =>
        h(
          "label",
          { class: "pill" },
          h("input", {
            type: "radio",
            name: "operation",
            value: kind,
            checked: kind === chosen,
            "data-focus": kind,
            onchange: () => {
              chosen = kind;
              problem.textContent = "";
              drawForm();
            },
          }),
          kind,
        ),
      );
      form.replaceChildren(
        h("div", { class: "pills", role: "radiogroup", "aria-label": "Operation" }, pills),
        fields
          ? h(
              "div",
              { class: "fields" },
              ...fields.map((field) => h("label", {}, h("span", {}, field.label), field.node)),
              button,
            )
          : h("p", { class: "muted why-not" }, WHY_NOT[chosen]),
      );
      form.oninput = () => fields && preview();
      form.onsubmit = (event) => {
        event.preventDefault();
        if (!fields) return;
        attempt(() => {
          const op = read();
          const size = chosen === "expand" ? op[2] : 1;
          if (size < 0 || size > limits.size) throw new RangeError(`Sizes here go from 0 to ${limits.size}.`);
          if (chosen === "transpose" && op[1] === op[2]) throw new RangeError("Choose two different axes.");
          change([...ops, op], `Applied ${suffix(view, op)}. `);
        });
      };
      if (fields) preview();
      if (inForm) (form.querySelector(`[data-focus="${inForm}"]`) ?? form.querySelector(":checked")).focus();
    }

    // --- Drawing: the expression and the numbers.

    function drawNumbers() {
      const made = ops.map((op, n) => suffix(states[n], op));
      code.replaceChildren(
        h("span", { class: "muted" }, `x = torch.arange(${product(shape)}).reshape(${shape.join(", ")})\n`),
        "y = x",
        ...made.map((text, n) => h("span", { class: n === made.length - 1 ? "latest" : "" }, text)),
      );
      // A button that is switched off would drop the focus to the top of the page.
      if (!ops.length && [undo, reset].includes(root.activeElement)) form.querySelector(":checked").focus();
      undo.disabled = reset.disabled = ops.length === 0;

      const row = (title, values) =>
        h("tr", {}, h("th", { scope: "row" }, title), values.map((value, axis) => h("td", { class: `a${axis}` }, value)));
      table.replaceChildren(
        h(
          "table",
          {},
          h("caption", { class: "hidden" }, "Shape and stride of y, axis by axis"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, view.shape.length ? "axis" : "no axis left"),
              view.shape.map((_, axis) => h("th", { scope: "col", class: `a${axis}` }, `${LETTERS[axis]} `, h("small", {}, axis))),
            ),
          ),
          h("tbody", {}, row("shape", view.shape), row("stride", view.stride)),
        ),
      );

      const count = product(view.shape);
      const whole = isContiguous(view);
      const shared = [...slotsReached.values()].filter((list) => list.length > 1).length;
      const fact = (term, ...description) => [h("dt", {}, term), h("dd", {}, ...description)];
      facts.replaceChildren(
        ...fact("offset", h("span", { class: "mono offset" }, view.offset)),
        ...fact(
          "contiguous",
          h("strong", { class: whole ? "good" : "bad" }, whole ? "✓ yes" : "✗ no"),
          whole ? null : ": row-major order needs stride ",
          whole ? null : h("code", {}, tuple(contiguousStride(view.shape))),
        ),
        ...fact(
          "elements",
          `${count} in ${plural(slotsReached.size, "distinct slot")} of ${view.slots}`,
          shared ? h("span", { class: "muted" }, ` (${plural(shared, "slot")} reached more than once)`) : null,
        ),
        ...fact(
          "bytes",
          `${view.slots * itemsize} of storage, shared with x; y adds 0`,
          whole && count === view.slots ? null : h("span", { class: "muted" }, ` (a copy of y: ${count * itemsize})`),
        ),
      );
    }

    // --- Drawing: the view, as one grid. Axes -1 and -2 run inside a block, -3 across and -4 down the blocks.

    const shade = (slot) => `--depth: ${view.slots > 1 ? (slot / (view.slots - 1)).toFixed(3) : 0}`;

    function drawGrid() {
      const padded = [...Array(limits.axes - view.shape.length).fill(1), ...view.shape];
      const [deep, wide, tall, long] = padded;
      const label = (axis) => view.shape.length - limits.axes + axis; // the view's own number of a padded axis
      const blocks = view.shape.length > 2;
      const rows = [];
      for (let d = 0; d < deep; d++) {
        const top = d * (tall + 2) + 1; // caption, column numbers, rows
        const heads = [];
        for (let w = 0; w < wide; w++) {
          const left = w * (long + 1) + 1; // row numbers, columns
          const head = [d, w].slice(limits.axes - view.shape.length);
          if (blocks)
            heads.push(
              h(
                "span",
                { class: "caption mono", style: `grid-area: ${top} / ${left + 1} / auto / span ${long}` },
                "[",
                head.flatMap((i, axis) => [h("b", { class: `a${axis}` }, i), ", "]),
                ":, :]",
              ),
            );
          if (view.shape.length > 0)
            for (let c = 0; c < long; c++)
              heads.push(h("span", { class: `mark a${label(3)}`, style: `grid-area: ${top + 1} / ${left + 1 + c}` }, c));
          if (view.shape.length > 1)
            for (let r = 0; r < tall; r++)
              heads.push(h("span", { class: `mark a${label(2)}`, style: `grid-area: ${top + 2 + r} / ${left}` }, r));
        }
        rows.push(h("div", { class: "marks", role: "presentation", "aria-hidden": "true" }, heads));
        for (let r = 0; r < tall; r++) {
          const cells = [];
          for (let w = 0; w < wide; w++)
            for (let c = 0; c < long; c++) {
              const index = [d, w, r, c].slice(limits.axes - view.shape.length);
              const slot = address(view, index);
              cells.push(
                h(
                  "div",
                  {
                    role: "gridcell",
                    class: "cell mono",
                    tabindex: -1,
                    "data-index": index.join(),
                    "data-slot": slot,
                    "data-row": d * tall + r,
                    "data-column": w * long + c,
                    "aria-label": `${name(index)} is in slot ${slot}: ${spoken(index)}`,
                    style: `${shade(slot)}; grid-area: ${top + 2 + r} / ${w * (long + 1) + 2 + c}`,
                  },
                  slot,
                ),
              );
            }
          rows.push(h("div", { role: "row" }, cells));
        }
      }
      if (product(view.shape) === 0)
        grid.replaceChildren(
          h(
            "div",
            { role: "row" },
            h("p", { class: "muted", role: "gridcell" }, `No elements: shape ${tuple(view.shape)} has an axis of size 0.`),
          ),
        );
      else grid.replaceChildren(...rows);
      grid.setAttribute("aria-label", `The view y, shape ${tuple(view.shape)}: arrow keys move from element to element`);
    }

    const spoken = (index) =>
      [view.offset, ...index.map((i, axis) => `${i} times ${view.stride[axis]}`)].join(" plus ");

    // --- Drawing: the storage.

    function drawStrip() {
      strip.replaceChildren(
        ...Array.from({ length: view.slots }, (_, slot) => {
          const list = slotsReached.get(slot) ?? [];
          const who = list.length ? `reached by ${list.map(name).join(", ")}` : "not reached by y";
          return h(
            "button",
            {
              type: "button",
              class: `slot mono${list.length ? " on" : ""}`,
              tabindex: -1,
              style: shade(slot),
              "data-slot": slot,
              "aria-label": `Slot ${slot}, ${who}`,
            },
            slot,
            list.length > 1 ? h("span", { class: "times" }, `×${list.length}`) : null,
          );
        }),
      );
      fit();
    }

    /** Choose the width of a slot so that the strip fills the figure, or scrolls where it cannot. */
    function fit() {
      const room = tape.parentElement.clientWidth - 8;
      slotWidth = Math.min(60, Math.max(28, Math.floor(room / view.slots)));
      tape.style.setProperty("--slot", `${slotWidth}px`);
      tape.style.width = `${slotWidth * view.slots}px`;
    }

    // --- Drawing: what is pointed at.

    function point() {
      const { index, slot = address(view, index) } = current();
      const fromSlot = current().slot !== undefined;
      const places = slotsReached.get(slot) ?? [];
      for (const cell of grid.querySelectorAll(".cell")) {
        const here = Number(cell.dataset.slot) === slot;
        const main = here && !fromSlot && cell.dataset.index === index.join();
        cell.classList.toggle("main", main || (here && fromSlot));
        cell.classList.toggle("same", here && !main && !fromSlot);
      }
      for (const node of strip.children) node.classList.toggle("main", Number(node.dataset.slot) === slot);

      // One stop for the Tab key in the grid, one in the strip.
      const pinnedSlot = pinned.slot ?? address(view, pinned.index);
      const stop = pinned.slot === undefined ? pinned.index : (slotsReached.get(pinnedSlot)?.[0] ?? view.shape.map(() => 0));
      for (const cell of grid.querySelectorAll(".cell")) cell.tabIndex = cell.dataset.index === stop.join() ? 0 : -1;
      for (const node of strip.children) node.tabIndex = Number(node.dataset.slot) === pinnedSlot ? 0 : -1;

      if (fromSlot) drawPlaces(slot, places);
      else drawFormula(index, slot);
      drawArcs(fromSlot ? places[0] : index, slot);
    }

    function drawFormula(index, slot) {
      const term = (className, symbol, value) =>
        h("span", { class: `term ${className}` }, h("span", {}, symbol), h("span", {}, value));
      const plus = (sign) => h("span", { class: "sign" }, h("span", {}, sign), h("span", {}, sign));
      formula.replaceChildren(
        h("span", { class: "term target" }, h("span", {}, `y[${LETTERS.slice(0, index.length).join(", ")}]`), h("span", {}, name(index))),
        h("span", { class: "sign arrow" }, h("span", {}, "→"), h("span", {}, "→")),
        term("offset", "offset", view.offset),
        ...index.flatMap((i, axis) => [
          plus("+"),
          term(`a${axis}`, h("span", {}, LETTERS[axis], "·stride", h("sub", {}, axis)), `${i}·${view.stride[axis]}`),
        ]),
        plus("="),
        term("slot-term", "slot", slot),
      );
    }

    function drawPlaces(slot, places) {
      const shown = places.slice(0, 8).map(name).join(", ");
      const more = places.length > 8 ? ` and ${places.length - 8} more` : "";
      formula.replaceChildren(
        h(
          "p",
          { class: "places" },
          h("strong", {}, `Slot ${slot}`),
          places.length ? " is reached by " : " is not reached by y. It stays in memory as long as y lives.",
          places.length ? h("code", {}, shown) : null,
          more,
          places.length > 1
            ? `: ${places.length} elements, one number in memory. Write to one and all of them change.`
            : places.length
              ? " and no other element."
              : null,
        ),
      );
    }

    /** The way to an element: from the offset, one arc for each step along each axis. */
    function drawArcs(index, slot) {
      const width = slotWidth * view.slots;
      const height = 62;
      const base = height - 3;
      const x = (place) => (place + 0.5) * slotWidth;
      const nodes = [];
      arcs.setAttribute("viewBox", `0 0 ${width} ${height}`);
      arcs.setAttribute("width", width);
      arcs.setAttribute("height", height);
      if (index && product(view.shape)) {
        let at = view.offset;
        const side = x(at) < 48 ? "start" : x(at) > width - 48 ? "end" : "middle";
        const anchor = { start: x(at) - 6, end: x(at) + 6, middle: x(at) }[side];
        nodes.push(svg("circle", { class: "start", cx: x(at), cy: base - 2, r: 4.5 }));
        if (slot === at)
          nodes.push(svg("text", { x: anchor, y: base - 14, "text-anchor": side, class: "offset-label" }, `offset ${at}`));
        index.forEach((i, axis) => {
          const step = view.stride[axis];
          for (let n = 0; n < i; n++) {
            const [from, to] = [x(at), x(at + step)];
            const rise = Math.min(40, 12 + Math.abs(to - from) * 0.22);
            const loop = step === 0;
            if (loop && n) continue; // no distance: one loop stands for all the steps
            const path = loop
              ? `M${from - 3},${base - 5} C${from - 26},${base - 44} ${from + 26},${base - 44} ${from + 3},${base - 5}`
              : `M${from},${base - 5} C${from + (to - from) * 0.18},${base - rise * 1.3} ${to - (to - from) * 0.18},${base - rise * 1.3} ${to},${base - 5}`;
            const delay = `animation-delay: ${nodes.length * 18}ms`;
            nodes.push(svg("path", { class: `arc a${axis}`, d: path, pathLength: 1, style: delay }));
            if (!loop) {
              nodes.push(svg("path", { class: `tip a${axis}`, d: `M${to - 4},${base - 8} h8 l-4,7 z` }));
            }
            const middle = (from + to) / 2;
            const labelled = loop || slotWidth * Math.abs(step) > 26 || n === 0;
            if (labelled)
              nodes.push(
                svg(
                  "text",
                  { class: `step a${axis}`, x: middle, y: base - (loop ? 38 : rise + 3), "text-anchor": "middle" },
                  loop && i > 1 ? `${i}·0` : `+${step}`,
                ),
              );
            at += step;
          }
        });
      }
      arcs.replaceChildren(...nodes);
    }

    // --- Pointing: mouse, touch, keyboard.

    const target = (event) => {
      const node = event.target.closest?.(".cell, .slot");
      if (!node) return null;
      return node.matches(".cell")
        ? { index: node.dataset.index === "" ? [] : node.dataset.index.split(",").map(Number) }
        : { slot: Number(node.dataset.slot) };
    };
    for (const area of [grid, strip]) {
      area.addEventListener("pointerover", (event) => {
        if (event.pointerType === "touch") return;
        hovered = target(event);
        point();
      });
      area.addEventListener("pointerleave", () => {
        hovered = null;
        point();
      });
      const pin = (event) => {
        const what = target(event);
        if (!what) return;
        [pinned, hovered] = [what, null];
        point();
        reveal();
      };
      area.addEventListener("click", (event) => {
        pin(event);
        event.target.closest?.(".cell")?.focus();
      });
      area.addEventListener("focusin", pin);
    }

    /** Scroll the strip and the grid, and nothing else, so that what is pointed at can be seen. */
    function reveal() {
      for (const node of [strip.querySelector(".main"), grid.querySelector(".main")]) {
        if (!node) continue;
        const box = node.closest(".scroll");
        const [inner, outer] = [node.getBoundingClientRect(), box.getBoundingClientRect()];
        if (inner.left < outer.left || inner.right > outer.right)
          box.scrollLeft += (inner.left + inner.right) / 2 - (outer.left + outer.right) / 2;
      }
    }

    const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    grid.addEventListener("keydown", (event) => {
      const cell = event.target.closest(".cell");
      if (!cell) return;
      const all = [...grid.querySelectorAll(".cell")];
      const [row, column] = [Number(cell.dataset.row), Number(cell.dataset.column)];
      const inRow = all.filter((other) => Number(other.dataset.row) === row);
      let next;
      if (STEPS[event.key]) {
        const [down, right] = STEPS[event.key];
        next = grid.querySelector(`[data-row="${row + down}"][data-column="${column + right}"]`);
      } else if (event.key === "Home") next = (event.ctrlKey ? all : inRow)[0];
      else if (event.key === "End") next = (event.ctrlKey ? all : inRow).at(-1);
      else return;
      event.preventDefault();
      next?.focus();
    });
    strip.addEventListener("keydown", (event) => {
      const at = Number(event.target.dataset.slot);
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: view.slots - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      strip.children[to]?.focus();
    });

    change(ops);
    new ResizeObserver(() => {
      fit();
      point();
      reveal();
    }).observe(tape.parentElement);
  };

  const STYLE = `
:host {
  --a0: #b83d09; --a1: #0a6e63; --a2: #7a2bc4; --a3: #8a5a00;
  --slot-near: #eaf3fd; --slot-far: #7fb2ea; --slot-ink: #10202f;
}
:host([data-theme="dark"]) {
  --a0: #ff9a5c; --a1: #4fd6c1; --a2: #cda2ff; --a3: #f0c24a;
  --slot-near: #1b2f45; --slot-far: #2f6cad; --slot-ink: #f2f7fc;
}
.a0 { --axis: var(--a0); } .a1 { --axis: var(--a1); } .a2 { --axis: var(--a2); } .a3 { --axis: var(--a3); }
.heading {
  font-size: 0.78em; font-weight: 650; letter-spacing: 0.06em; text-transform: uppercase; color: var(--muted);
  margin-bottom: 7px;
}
.figure { container-name: explorer; }
.controls { display: flex; flex-direction: column; gap: 14px; padding: 16px 18px; background: var(--panel); }
.shapes, .pills, .fields, .sizes, .together, .presets, .history { display: flex; flex-wrap: wrap; align-items: center; }
.shapes { gap: 8px 14px; }
.sizes { gap: 3px; font-family: var(--mono); font-size: 1.05em; }
.sizes input { width: 3.6em; padding-right: 2px; }
.together, .history { gap: 6px; }
.together button { width: 34px; padding: 0; font-size: 1.1em; }
.presets { gap: 6px; }
.preset { border-color: transparent; background: none; color: var(--accent); padding: 3px 8px; }
.preset[aria-pressed="true"] { border-color: var(--accent); background: var(--tint); }
.operations { display: grid; gap: 10px; }
.pills { gap: 6px; }
.pill {
  position: relative; display: inline-flex; align-items: center; min-height: 32px; padding: 2px 12px; border-radius: 16px;
  border: 1px solid var(--edge); background: var(--paper); font-family: var(--mono); font-size: 0.9em; cursor: pointer;
}
.pill:hover { border-color: var(--accent); background: var(--tint); }
.pill:has(:checked) { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.pill input { position: absolute; inset: 0; opacity: 0; margin: 0; cursor: pointer; }
.pill:has(:focus-visible) { outline: 3px solid var(--focus); outline-offset: 2px; }
.fields { gap: 8px 12px; }
.fields label { display: inline-flex; align-items: center; gap: 6px; }
.fields input { width: 4.6em; }
.why-not { min-height: 34px; display: flex; align-items: center; }
.problem { color: var(--bad); font-weight: 550; }
.problem:empty { display: none; }
.problem:not(:empty) { margin-top: 8px; }
.made {
  display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: 10px;
  padding: 12px 18px; border-block: 1px solid var(--line);
}
.expression { flex: 1 1 300px; font-size: 1em; line-height: 1.6; white-space: pre-wrap; overflow-wrap: anywhere; }
.latest { font-weight: 700; color: var(--accent); }
.views { display: grid; grid-template-columns: minmax(0, max-content) minmax(300px, 1fr); gap: 20px 44px; padding: 16px 18px 8px; }
.numbers { display: flex; flex-direction: column; gap: 12px; }
.scroll { overflow-x: auto; padding: 5px; margin: -5px; }
.grid { display: grid; gap: 3px; width: max-content; min-height: 150px; align-content: start; }
.grid [role="row"], .marks { display: contents; }
.mark {
  display: grid; place-items: center; min-width: 22px; min-height: 20px; font-size: 0.8em; font-family: var(--mono);
  color: var(--axis); font-weight: 600;
}
.caption b { color: var(--axis); }
.caption { color: var(--muted); font-size: 0.8em; white-space: nowrap; padding-top: 6px; }
.cell, .slot {
  color: var(--slot-ink);
  background: color-mix(in oklab, var(--slot-near), var(--slot-far) calc(var(--depth) * 100%));
}
.cell {
  display: grid; place-items: center; width: 40px; height: 36px; border-radius: 6px; cursor: pointer; font-size: 0.95em;
  border: 2px solid transparent;
}
.cell.main, .slot.main { border: 2px solid var(--ink); font-weight: 750; }
.cell.same { border: 2px dashed var(--ink); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 18px 3px 0; text-align: left; min-width: 48px; white-space: nowrap; }
small { font-weight: 400; font-size: 0.8em; color: var(--muted); }
thead th { color: var(--axis, var(--muted)); border-bottom: 1px solid var(--line); font-weight: 600; }
thead th:not(:first-child), tbody td { font-family: var(--mono); }
tbody th { font-weight: 500; color: var(--muted); }
tbody td { color: var(--axis); font-weight: 700; font-size: 1.1em; }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 14px; }
dt { color: var(--muted); }
.good { color: var(--good); } .bad { color: var(--bad); }
.memory { padding: 10px 18px 14px; }
.formula {
  display: flex; flex-wrap: wrap; align-items: center; gap: 4px 10px; min-height: 56px;
}
.term, .sign {
  display: inline-grid; justify-items: center; line-height: 1.45; font-family: var(--mono); font-variant-numeric: tabular-nums;
}
.term > :first-child { font-size: 0.84em; color: var(--axis, var(--muted)); }
.term > :last-child { font-size: 1.12em; font-weight: 700; color: var(--axis, var(--ink)); }
.sign { color: var(--muted); }
.sign > :first-child { font-size: 0.84em; }
.sign > :last-child { font-size: 1.12em; }
.term.target { justify-items: start; }
.slot-term > :last-child { padding: 0 9px; border: 2px solid var(--ink); border-radius: 6px; line-height: 1.25; }
sub { font-size: 0.8em; line-height: 0; }
.tape { position: relative; }
.arcs { display: block; overflow: visible; }
.arc { fill: none; stroke: var(--axis); stroke-width: 2.2; stroke-dasharray: 1; animation: draw 0.22s ease-out backwards; }
.tip { fill: var(--axis); }
.start { fill: var(--ink); }
.step, .offset-label { font: 700 12px/1 var(--mono); fill: var(--axis, var(--muted)); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
@keyframes draw { from { stroke-dashoffset: 1; } to { stroke-dashoffset: 0; } }
.strip { display: flex; }
.slot {
  position: relative; flex: 0 0 var(--slot); width: var(--slot); height: 40px; min-height: 0; padding: 0; font-size: 0.9em;
  border: 1px solid var(--edge); border-radius: 0; margin-left: 0;
}
.slot + .slot:not(.main) { border-left: 0; }
.slot:first-child { border-radius: 7px 0 0 7px; }
.slot:last-child { border-radius: 0 7px 7px 0; }
.slot:hover:not(:disabled) { background: color-mix(in oklab, var(--slot-near), var(--slot-far) calc(var(--depth) * 100%)); }
.slot:not(.on), .slot:not(.on):hover:not(:disabled) {
  color: var(--muted);
  background: repeating-linear-gradient(-45deg, var(--paper) 0 5px, var(--panel) 5px 7px, var(--line) 7px 8px);
}
.slot:focus-visible, .cell:focus-visible { z-index: 1; }
.times { position: absolute; right: 2px; bottom: 0; font-size: 0.72em; line-height: 1.3; font-weight: 700; }
.help { font-size: 0.88em; margin-top: 10px; }
@container explorer (max-width: 620px) {
  .views { grid-template-columns: minmax(0, 1fr); }
  .controls, .made, .views, .memory { padding-inline: 12px; }
  .cell { width: 36px; height: 34px; }
  .grid { min-height: 0; }
}
@media (forced-colors: active) { .cell, .slot { border-color: CanvasText; } .main { outline: 3px solid Highlight; } }
`;

  S.define("stride_explorer", mount);
})();
