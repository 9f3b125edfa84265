// The ring all-reduce, step by step: who has which partial sum of which chunk, and what it has sent.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, svg, button } = S;

  // --- Arithmetic. Pure, and equal to the book's Python: the tests compare the two.

  const mod = (a, n) => ((a % n) + n) % n;

  /** The 2(n − 1) steps: {phase, sends}, where sends[r] is the chunk that rank r sends to rank r + 1. */
  const schedule = (n) => {
    const ranks = Array.from({ length: n }, (_, r) => r);
    const steps = Array.from({ length: n - 1 }, (_, s) => s);
    return [
      ...steps.map((s) => ({ phase: "reduce-scatter", sends: ranks.map((r) => mod(r - s - 1, n)) })),
      ...steps.map((s) => ({ phase: "all-gather", sends: ranks.map((r) => mod(r - s, n)) })),
    ];
  };

  /** After `done` steps: has[r][c] is the sorted list of ranks whose chunk c rank r has in its sum. */
  const state = (n, done) => {
    let has = Array.from({ length: n }, (_, r) => Array.from({ length: n }, () => [r]));
    for (const { phase, sends } of schedule(n).slice(0, done)) {
      const next = has.map((row) => row.slice());
      sends.forEach((c, r) => {
        const to = mod(r + 1, n);
        const mine = phase === "reduce-scatter" ? has[to][c] : [];
        next[to][c] = [...mine, ...has[r][c]].sort((a, b) => a - b);
      });
      has = next;
    }
    return has;
  };

  /** Elements of each chunk, as tensor_split cuts them: the first ones are longer by one. */
  const chunks = (n, elements) =>
    Array.from({ length: n }, (_, c) => Math.floor(elements / n) + (c < elements % n ? 1 : 0));

  /** Bytes that each rank has sent after `done` steps. */
  const sent = (n, done, elements, itemsize) => {
    const sizes = chunks(n, elements);
    return Array.from({ length: n }, (_, r) =>
      schedule(n).slice(0, done).reduce((sum, { sends }) => sum + sizes[sends[r]] * itemsize, 0));
  };

  S.ring = { schedule, state, chunks, sent };

  // --- The figure.

  const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a00", "#7a5cc4"];
  const W = 46, H = 32, GAP = 20, LEFT = 62, TOP = 40;
  const bytes = (x) => `${x.toLocaleString("en-US")} B`;

  const mount = (root, data) => {
    const live = S.liveRegion();
    let n = data.world_size;
    let done = 0;
    let timer = null;

    const worlds = h("div", { class: "worlds", role: "group", "aria-label": "World size" });
    const first = button("|◀", "To the start", () => go(0));
    const back = button("◀", "One step back", () => go(done - 1));
    const play = button("Play", "Play", () => (timer ? stop() : start()), { class: "primary play" });
    const next = button("▶", "One step forward", () => go(done + 1));
    const last = button("▶|", "To the end", () => go(total()));
    const where = h("p", { class: "where" });
    const what = h("p", { class: "what muted" });
    const board = h("div", { class: "board" });
    const bill = h("dl", { class: "bill" });
    const meter = h("div", { class: "meter", "aria-hidden": "true" }, h("span", { class: "fill" }));

    const total = () => 2 * (n - 1);
    function stop() {
      if (timer) clearInterval(timer);
      timer = null;
      play.textContent = "Play";
      play.setAttribute("aria-label", "Play");
    }
    function start() {
      if (done === total()) done = 0;
      play.textContent = "Pause";
      play.setAttribute("aria-label", "Pause");
      timer = setInterval(() => {
        if (!root.host.isConnected) return stop();
        if (done < total()) move(done + 1);
        if (done >= total()) stop();
        return null;
      }, 1100);
      draw();
    }
    function move(to) {
      done = Math.min(Math.max(to, 0), total());
      draw();
      live.say(`${where.textContent}. ${what.textContent}`);
    }
    const go = (to) => {
      stop();
      move(to);
    };

    const account = () => {
      const steps = schedule(n);
      const now = steps[done - 1];
      if (!now) return "Every rank has its own n chunks, and a sum of one: the number in each square.";
      if (done === total()) return "Every rank has every sum. Each chunk has gone round twice, less two hops.";
      if (done === n - 1) return "Each rank has one finished chunk, Σ, its share of the sum. This is a reduce-scatter.";
      return now.phase === "reduce-scatter"
        ? "Each rank sends one chunk to its right neighbour, which adds it to its own."
        : "Each rank passes a finished chunk on. The right neighbour overwrites its own.";
    };

    const picture = () => {
      const has = state(n, done);
      const now = schedule(n)[done - 1];
      const width = LEFT + n * (W + 6) + 6;
      const height = TOP + n * (H + GAP) + 4;
      const y = (r) => TOP + r * (H + GAP);
      const x = (c) => LEFT + c * (W + 6);
      const parts = [];
      parts.push(svg("text", { x: LEFT - 12, y: 13, class: "side" }, "chunk"));
      for (let c = 0; c < n; c++) parts.push(svg("text", { x: x(c) + W / 2, y: 13, class: "head" }, String(c)));
      for (let r = 0; r < n; r++) {
        parts.push(svg("text", { x: LEFT - 12, y: y(r) + H / 2 + 5, class: "side" }, `rank ${r}`));
        for (let c = 0; c < n; c++) {
          const count = has[r][c].length;
          const level = (H * count) / n;
          const moved = now && now.sends[mod(r - 1, n)] === c;
          parts.push(
            svg("rect", { x: x(c), y: y(r), width: W, height: H, rx: 5, class: "slot" }),
            svg("rect", { x: x(c), y: y(r) + H - level, width: W, height: level, rx: 5, fill: HUES[c], class: "level" }),
            svg("rect", { x: x(c), y: y(r), width: W, height: H, rx: 5, class: moved ? "edge moved" : "edge" }),
            svg("text", { x: x(c) + W / 2, y: y(r) + H / 2 + 5, class: count === n ? "count full" : "count" }, count === n ? "Σ" : String(count)),
          );
        }
      }
      if (now) {
        now.sends.forEach((c, r) => {
          const wraps = r === n - 1;
          const from = wraps ? TOP - GAP + 1 : y(r) + H + 1;
          const to = wraps ? TOP - 3 : y(r + 1) - 3;
          const at = x(c) + W / 2;
          if (wraps) parts.push(svg("line", { x1: at, y1: y(r) + H + 1, x2: at, y2: y(r) + H + 10, class: "wire dashed" }));
          parts.push(
            svg("line", { x1: at, y1: from, x2: at, y2: to - 4, class: wraps ? "wire dashed" : "wire" }),
            svg("path", { d: `M ${at - 5} ${to - 6} L ${at + 5} ${to - 6} L ${at} ${to + 1} Z`, class: "tip" }),
          );
        });
      }
      const words = has.map((row, r) => `rank ${r}: ${row.map((who) => (who.length === n ? "sum" : `${who.length} of ${n}`)).join(", ")}`);
      return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: `max-width:${Math.round(width * 1.15)}px`,
        "aria-label": `Ranks as rows, chunks as columns. ${words.join(". ")}` }, parts);
    };

    function draw() {
      const most = Math.max(...sent(n, done, data.elements, data.itemsize));
      const whole = data.elements * data.itemsize;
      const bound = Math.max(...sent(n, total(), data.elements, data.itemsize));
      worlds.replaceChildren(...Array.from({ length: 7 }, (_, i) => i + 2).map((size) =>
        h("button", {
          type: "button", "aria-pressed": String(size === n), "aria-label": `${size} ranks`, "data-n": size,
          onclick: () => { stop(); n = size; done = 0; draw(); root.querySelector(`[data-n="${size}"]`).focus(); live.say(`${size} ranks`); },
        }, String(size))));
      first.disabled = back.disabled = done === 0;
      next.disabled = last.disabled = done === total();
      const phase = done === 0 ? "Start" : schedule(n)[done - 1].phase;
      where.replaceChildren(h("b", {}, phase), ` · step ${done} of 2(n − 1) = ${total()}`);
      what.textContent = account();
      board.replaceChildren(picture());
      const rows = [
        ["sent by each rank so far", bytes(most)],
        [`in all: 2(n − 1)/n of ${bytes(whole)}`, bytes(bound)],
        ["through one root: (n − 1) tensors", bytes((n - 1) * whole)],
      ];
      bill.replaceChildren(...rows.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
      meter.firstChild.style.width = `${(100 * most) / ((n - 1) * whole)}%`;
      meter.style.setProperty("--bound", `${(100 * bound) / ((n - 1) * whole)}%`);
    }

    const figure = h("div", { class: "figure", onkeydown: S.stepping(go, () => done, total) },
      h("div", { class: "controls" },
        h("div", { class: "line" }, h("span", { class: "label" }, "ranks"), worlds),
        h("div", { class: "line", role: "group", "aria-label": "Steps" }, first, back, play, next, last)),
      h("div", { class: "block", tabindex: "0", role: "group", "aria-label": "The ring; arrow keys step" }, where, what, board),
      h("div", { class: "block" }, bill, meter,
        h("p", { class: "muted help" }, "The bar ends where one root would have sent everything to everyone; the mark is the ring's total. Arrow keys step; Home and End jump.")),
      live.node);
    root.append(h("style", {}, STYLE), figure);
    draw();
  };

  const STYLE = `
.controls { display: flex; flex-wrap: wrap; gap: 10px 26px; padding: 14px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.line, .worlds { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; }
.label { color: var(--muted); }
.worlds button { width: 34px; padding: 0; }
.worlds button[aria-pressed="true"] { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.play { min-width: 74px; }
.block { padding: 14px 18px; border-bottom: 1px solid var(--line); }
.block:last-of-type { border-bottom: 0; }
.what { min-height: 3em; }
.board { margin-top: 6px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: var(--mono); font-size: 13px; text-anchor: middle; fill: var(--ink); }
svg .head { font-size: 12px; fill: var(--muted); } svg .side { text-anchor: end; fill: var(--muted); }
.slot { fill: var(--panel); } .level { opacity: 0.5; transition: y 0.25s, height 0.25s; }
.edge { fill: none; stroke: var(--edge); } .edge.moved { stroke: var(--ink); stroke-width: 2.5; }
svg .full { font-weight: 700; }
.wire { stroke: var(--ink); stroke-width: 2; } .dashed { stroke-dasharray: 3 3; } .tip { fill: var(--ink); }
.bill { display: grid; grid-template-columns: minmax(0, max-content) max-content; gap: 3px 16px; }
dt { color: var(--muted); } dd { font-family: var(--mono); font-size: 0.92em; text-align: right; }
.meter { position: relative; height: 14px; margin-top: 10px; background: var(--panel); border: 1px solid var(--edge); border-radius: 7px; overflow: hidden; }
.meter .fill { position: absolute; inset: 0 auto 0 0; background: var(--accent); transition: width 0.25s; }
.meter::after { content: ""; position: absolute; top: 0; bottom: 0; left: calc(var(--bound) - 1px); width: 2px; background: var(--focus); }
.help { font-size: 0.85em; margin-top: 8px; }
.figure { container-name: ring; }
@container ring (max-width: 560px) { .controls, .block { padding-inline: 12px; } .what { min-height: 4.5em; } }
`;

  S.define("ring_all_reduce", mount);
})();
