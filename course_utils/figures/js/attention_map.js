// Causal attention: scores of every head, and what mask, scale and softmax make of them.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h } = S;

  // --- Arithmetic. Pure; the tests compare it with torch.

  /** The weights of one query: softmax of its raw scores, scaled by 1/√d and without the future, if so asked. */
  const weights = (scores, query, width, { scaled, causal }) => {
    const seen = scores.map((s, key) => (causal && key > query ? -Infinity : scaled ? s / Math.sqrt(width) : s));
    const most = Math.max(...seen);
    const powers = seen.map((s) => Math.exp(s - most));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((p) => p / sum);
  };
  const map = (head, width, options) => head.map((scores, query) => weights(scores, query, width, options));
  /** Entropy in bits: 0 looks at one position, log2(n) at n alike. */
  const entropy = (row) => row.reduce((sum, p) => sum - (p > 0 ? p * Math.log2(p) : 0), 0);
  /** How far back it looks on average, in positions; what lies ahead counts as negative. */
  const reach = (row, query) => row.reduce((sum, p, key) => sum + p * (query - key), 0);
  const ahead = (row, query) => row.slice(query + 1).reduce((sum, p) => sum + p, 0);

  S.attention = { weights, map, entropy, reach, ahead };

  // --- The figure.

  const percent = (p) => `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;
  const visible = (token) => token.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");

  const mount = (root, data) => {
    const live = S.liveRegion();
    const { scores, tokens, width } = data; // scores[layer][head][query][key]
    const T = tokens.length, layers = scores.length, heads = scores[0].length;
    let layer = 0, head = 0, query = T - 1;
    const options = { scaled: true, causal: true };

    const paint = (canvas, rows, chosen) => {
      const cell = Math.max(1, Math.floor(canvas.width / T));
      const style = getComputedStyle(root.host);
      const colour = (name) => style.getPropertyValue(name).trim();
      const context = canvas.getContext("2d");
      context.globalAlpha = 1;
      context.fillStyle = colour("--panel");
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.fillStyle = colour("--accent");
      rows.forEach((row, q) => row.forEach((p, k) => {
        if (p < 0.004) return;
        context.globalAlpha = Math.min(1, 0.08 + 0.92 * Math.sqrt(p));
        context.fillRect(k * cell, q * cell, cell, cell);
      }));
      context.globalAlpha = 1;
      if (chosen !== undefined) {
        context.strokeStyle = colour("--focus");
        context.lineWidth = 2;
        context.strokeRect(1, chosen * cell + 1, T * cell - 2, cell - 2);
      }
    };

    const toggle = (name, label, says) => h("button", { type: "button", class: "toggle", "data-toggle": name, "aria-pressed": "true", onclick: (event) => {
        options[name] = !options[name];
        event.currentTarget.setAttribute("aria-pressed", String(options[name]));
        draw();
        live.say(`${says} ${options[name] ? "on" : "off"}. ${summary()}`);
      } }, label);
    const toggles = h("div", { class: "line", role: "group", "aria-label": "What is done to the scores" },
      toggle("scaled", "÷ √d", "Scale"), toggle("causal", "causal mask", "Causal mask"));

    const side = 72;
    const thumbs = [];
    const picker = h("div", { class: "picker", role: "group", "aria-label": "Blocks and heads" });
    for (let l = 0; l < layers; l++) {
      const line = h("div", { class: "line" }, h("span", { class: "label" }, `block ${l}`));
      for (let k = 0; k < heads; k++) {
        const canvas = h("canvas", { width: T * Math.max(1, Math.round((2 * side) / T)), height: T * Math.max(1, Math.round((2 * side) / T)), "aria-hidden": "true" });
        const button = h("button", { type: "button", class: "thumb", "aria-label": `Block ${l}, head ${k}`, title: `Block ${l}, head ${k}`, onclick: () => {
            [layer, head] = [l, k];
            draw();
            live.say(`Block ${l}, head ${k}. ${summary()}`);
          } }, canvas);
        thumbs.push({ button, canvas, l, k });
        line.append(button);
      }
      picker.append(line);
    }

    const cell = Math.max(6, Math.floor(640 / T));
    const large = h("canvas", { width: cell * T, height: cell * T, class: "large", role: "img", onclick: (event) => {
        const box = large.getBoundingClientRect();
        look(Math.floor(((event.clientY - box.top) / box.height) * T));
      } });
    const chips = tokens.map((token, i) =>
      h("button", { type: "button", class: "chip", "data-position": i, tabindex: i === query ? "0" : "-1", onclick: () => look(i) }, visible(token)));
    const text = h("div", { class: "text", role: "group", "aria-label": "The text; arrow keys choose the position that looks", onkeydown: (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const to = { ArrowRight: query + 1, ArrowLeft: query - 1, ArrowDown: query + 1, ArrowUp: query - 1, Home: 0, End: T - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        look(to);
        chips[query].focus();
      } }, ...chips);
    const facts = h("dl", { class: "facts" });
    const verdict = h("p", { class: "verdict" });

    const rows = () => map(scores[layer][head], width, options);
    const look = (to) => {
      query = Math.min(Math.max(to, 0), T - 1);
      draw();
      live.say(summary());
    };
    const strongest = (row) => row.map((p, key) => ({ p, key })).sort((a, b) => b.p - a.p || a.key - b.key).slice(0, 3);
    const summary = () => {
      const row = rows()[query];
      const top = strongest(row).filter(({ p }) => p >= 0.0005).map(({ p, key }) => `${visible(tokens[key])} at ${key}: ${percent(p)}`);
      return `Position ${query}, ${visible(tokens[query])}, looks at ${top.join(", ")}`;
    };

    function draw() {
      const table = rows(), row = table[query];
      for (const { button, canvas, l, k } of thumbs) {
        button.setAttribute("aria-pressed", String(l === layer && k === head));
        paint(canvas, map(scores[l][k], width, options));
      }
      paint(large, table, query);
      large.setAttribute("aria-label", `Attention weights of block ${layer}, head ${head}: ${T} positions that look, as rows, by ${T} looked at. ${summary()}.`);
      chips.forEach((chip, i) => {
        chip.style.setProperty("--p", `${Math.round(100 * Math.min(1, Math.sqrt(row[i])))}%`);
        chip.classList.toggle("query", i === query);
        chip.classList.toggle("hidden-from", options.causal && i > query);
        chip.tabIndex = i === query ? 0 : -1;
        chip.setAttribute("aria-label", `position ${i}, ${visible(tokens[i])}, ${i === query ? "looks" : "weight"} ${percent(row[i])}`);
        chip.setAttribute("aria-pressed", String(i === query));
      });
      const future = ahead(row, query);
      const mean = table.reduce((sum, one) => sum + entropy(one), 0) / T;
      const list = [
        ["looks most at", strongest(row).filter(({ p }) => p >= 0.0005).map(({ p, key }) => `${visible(tokens[key])} at ${key}: ${percent(p)}`).join(", ")],
        ["entropy of this row", `${entropy(row).toFixed(2)} bits of at most ${Math.log2(options.causal ? query + 1 : T).toFixed(2)}`],
        ["looks back, on average", `${reach(row, query).toFixed(1)} positions`],
        ["entropy, mean of all rows", `${mean.toFixed(2)} bits`],
      ];
      facts.replaceChildren(...list.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
      verdict.textContent = !options.causal && query === T - 1
        ? "Without the mask every position sees all of them. The last has nothing ahead of it: choose an earlier one."
        : !options.causal
        ? `${percent(future)} of this row lies on what comes later. In training the next byte is the answer: without the mask the model could read it.`
        : !options.scaled
          ? "Without the division the scores are √d times as large, and the softmax leans towards its largest entry."
          : "Each row sums to 1. Nothing lies right of the diagonal: no position looks ahead.";
    }

    const figure = h("div", { class: "figure" },
      h("div", { class: "controls" }, picker, toggles),
      h("div", { class: "block" }, h("p", { class: "muted" }, "Choose the position that looks; the darker another, the more it takes from there."), text),
      h("div", { class: "block sides" },
        h("div", { class: "map" }, large, h("p", { class: "muted help" }, "rows look, columns are looked at; click a row")),
        h("div", {}, facts, verdict)),
      live.node);
    root.append(h("style", {}, STYLE), figure);
    draw();
    new MutationObserver(draw).observe(root.host, { attributeFilter: ["data-theme"] }); // canvases hold colours
  };

  const STYLE = `
.controls { display: flex; flex-wrap: wrap; align-items: end; gap: 12px 26px; padding: 14px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.picker { display: grid; gap: 6px; }
.line { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; }
.label { color: var(--muted); width: 4.2em; }
.thumb { padding: 3px; line-height: 0; } .thumb canvas { width: 62px; height: 62px; image-rendering: pixelated; }
.thumb[aria-pressed="true"] { border-color: var(--accent); box-shadow: 0 0 0 2px var(--accent); }
.toggle[aria-pressed="true"] { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.toggle[aria-pressed="false"] { text-decoration: line-through; }
.block { padding: 14px 18px; border-bottom: 1px solid var(--line); } .block:last-of-type { border-bottom: 0; }
.text { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 8px; }
.chip { font-family: var(--mono); padding: 1px 4px; min-width: 26px; min-height: 32px; border-color: var(--line);
  background: color-mix(in srgb, var(--accent) calc(0.45 * var(--p, 0%)), var(--paper)); }
.chip.query { outline: 3px solid var(--focus); outline-offset: 0; font-weight: 700; }
.chip.hidden-from { border-style: dashed; color: var(--muted); }
.sides { display: grid; grid-template-columns: minmax(0, 340px) minmax(0, 1fr); gap: 20px; align-items: start; }
.large { width: 100%; height: auto; border: 1px solid var(--edge); cursor: pointer; image-rendering: pixelated; display: block; }
.facts { display: grid; grid-template-columns: minmax(0, 1fr); gap: 0; }
dt { color: var(--muted); font-size: 0.9em; } dd { font-family: var(--mono); font-size: 0.92em; margin-bottom: 8px; overflow-wrap: anywhere; }
.verdict { padding: 8px 12px; background: var(--panel); border-left: 3px solid var(--accent); }
.help { font-size: 0.85em; margin-top: 4px; }
.figure { container-name: attention; }
@container attention (max-width: 600px) {
  .controls, .block { padding-inline: 12px; } .sides { grid-template-columns: minmax(0, 1fr); }
  .thumb canvas { width: 44px; height: 44px; } .label { width: 100%; }
}
`;

  S.define("attention_map", mount);
})();
