// An engine's steps: what each request has read, its table, and the pool of blocks.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, svg, button } = S;

  const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];
  const CELL = 20, ROW = 58, LEFT = 92, BLOCK = 38;

  const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

  /** What a step did, in words. */
  const account = (frame, number) => {
    if (number === 0) return "Nothing has been read yet.";
    const now = frame.rows.filter((row) => row.now);
    const said = [now.map((row) => `${row.name} reads ${row.now}`).join(", ") + "."];
    if (frame.shared) said.push(`${plural(frame.shared, "token")} were in known blocks already.`);
    if (frame.preempted) said.push(`${plural(frame.preempted, "request")} lost their blocks and wait again.`);
    const done = now.filter((row) => row.state === "done").map((row) => row.name);
    if (done.length) said.push(`${done.join(" and ")} ${done.length > 1 ? "are" : "is"} complete: the blocks are released.`);
    return said.join(" ");
  };
  S.engineSteps = { account };

  const mount = (root, data) => {
    const { frames, block } = data;
    const live = S.liveRegion();
    let at = 0;
    const total = () => frames.length - 1;

    const first = button("|◀", "To the start", () => go(0));
    const back = button("◀", "One step back", () => go(at - 1));
    const next = button("▶", "One step forward", () => go(at + 1), { class: "primary" });
    const last = button("▶|", "To the end", () => go(total()));
    const where = h("p", { class: "where" });
    const what = h("p", { class: "what muted" });
    const board = h("div", { class: "board" });

    function go(to) {
      at = Math.min(Math.max(to, 0), total());
      draw();
      live.say(`${where.textContent}. ${what.textContent}`);
    }

    const longest = Math.max(...frames.flatMap((frame) => frame.rows.map((row) => row.prompt + row.drawn)));

    const picture = (frame) => {
      const { rows, uses } = frame;
      const perLine = Math.max(1, Math.floor((LEFT + longest * CELL) / (BLOCK + 8)));
      const poolTop = rows.length * ROW + 26;
      const width = LEFT + longest * CELL + 8;
      const height = poolTop + Math.ceil(uses.length / perLine) * (BLOCK + 8) + 4;
      const parts = [];
      const owners = uses.map((_, b) => rows.flatMap((row, r) => (row.table.includes(b) ? [r] : [])));
      rows.forEach((row, r) => {
        const y = r * ROW + 4, hue = HUES[r % HUES.length];
        parts.push(svg("text", { x: 0, y: y + 15, class: "name" }, row.name), svg("text", { x: 0, y: y + 33, class: "state" }, row.state));
        const tokens = row.prompt + row.drawn;
        for (let t = 0; t < tokens; t++) {
          const x = LEFT + t * CELL;
          const read = t < row.read, now = read && t >= row.read - row.now;
          parts.push(svg("rect", { x: x + 1, y, width: CELL - 2, height: CELL, rx: 3, class: "slot" }));
          if (read) parts.push(svg("rect", { x: x + 1, y, width: CELL - 2, height: CELL, rx: 3, fill: hue, opacity: now ? 0.95 : 0.4 }));
          if (t >= row.prompt) parts.push(svg("circle", { cx: x + CELL / 2, cy: y + CELL / 2, r: 3, class: "drawn" }));
        }
        row.table.forEach((b, i) => {
          const x = LEFT + i * block * CELL, w = block * CELL;
          parts.push(
            svg("path", { d: `M ${x + 2} ${y + CELL + 3} v 4 h ${w - 4} v -4`, class: "brace" }),
            svg("text", { x: x + w / 2, y: y + CELL + 20, class: owners[b].length > 1 ? "number shared" : "number" }, String(b)));
        });
      });
      parts.push(svg("text", { x: 0, y: poolTop - 8, class: "state" }, "the pool: numbers of blocks, and how many tables have each"));
      uses.forEach((n, b) => {
        const x = (b % perLine) * (BLOCK + 8) + 1, y = poolTop + Math.floor(b / perLine) * (BLOCK + 8);
        parts.push(svg("rect", { x, y, width: BLOCK, height: BLOCK, rx: 5, class: "slot" }));
        owners[b].forEach((r, i) => {
          const w = BLOCK / owners[b].length;
          parts.push(svg("rect", { x: x + i * w, y, width: w, height: BLOCK, fill: HUES[r % HUES.length], opacity: 0.45 }));
        });
        parts.push(
          svg("rect", { x, y, width: BLOCK, height: BLOCK, rx: 5, class: n > 1 ? "edge many" : "edge" }),
          svg("text", { x: x + BLOCK / 2, y: y + 17, class: "number" }, String(b)),
          svg("text", { x: x + BLOCK / 2, y: y + 32, class: "uses" }, n ? `× ${n}` : "free"));
      });
      const words = rows.map((row) => `${row.name}, ${row.state}: ${row.read} of ${row.prompt + row.drawn} tokens read, blocks ${row.table.join(" ") || "none"}`);
      return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: `max-width:${Math.round(width * 1.2)}px; min-width:${Math.min(width, 420)}px`, "aria-label": words.join(". ") }, parts);
    };

    function draw() {
      const frame = frames[at];
      first.disabled = back.disabled = at === 0;
      next.disabled = last.disabled = at === total();
      const used = frame.uses.filter((n) => n > 0).length;
      where.replaceChildren(h("b", {}, at ? `after step ${at} of ${total()}` : "before the first step"), ` · ${used} of ${frame.uses.length} blocks in use`);
      what.textContent = account(frame, at);
      board.replaceChildren(picture(frame));
    }

    root.append(
      h("style", {}, STYLE),
      h("div", { class: "figure", onkeydown: S.stepping(go, () => at, total) },
        h("div", { class: "controls" }, h("div", { class: "line", role: "group", "aria-label": "Steps" }, first, back, next, last)),
        h("div", { class: "block", tabindex: "0", role: "group", "aria-label": "The engine; arrow keys step" }, where, what, board),
        h("p", { class: "help muted" }, "A square is a token: filled once it is read, strong in the step that reads it; a dot marks those that were drawn. Below it are the numbers of the blocks. Arrow keys step."),
        live.node));
    draw();
  };

  const STYLE = `
.controls { padding: 12px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.line { display: flex; flex-wrap: wrap; gap: 6px; }
.block { padding: 14px 18px; }
.what { min-height: 3em; }
.board { margin-top: 6px; overflow-x: auto; }
.help { padding: 0 18px 14px; font-size: 0.85em; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: var(--mono); font-size: 12px; fill: var(--ink); }
svg .name { font-weight: 700; font-size: 13px; } svg .state { fill: var(--muted); font-size: 11px; }
svg .number { text-anchor: middle; } svg .shared { font-weight: 700; }
svg .uses { text-anchor: middle; font-size: 10px; fill: var(--muted); }
.slot { fill: var(--panel); } .drawn { fill: var(--ink); }
.brace { fill: none; stroke: var(--edge); } .edge { fill: none; stroke: var(--edge); } .edge.many { stroke: var(--ink); stroke-width: 2.5; }
`;

  S.define("engine_steps", mount);
})();
