// What every interactive figure shares: finding its host on the page, the theme, a few DOM helpers.
// It is inlined before each figure, so it must bear being evaluated many times on one page.
(() => {
  "use strict";
  const S = (globalThis.StridesToShards ??= {});
  S.figures ??= {};
  S.hosts ??= new Set(); // WeakRefs: JupyterLab detaches the outputs that scroll away

  // --- mounting: `document.currentScript` is unreliable in JupyterLab, so hosts are looked up by name.

  /** Register a figure, `mount(root, data, host)`, and mount it in every host that waits for it. */
  S.define = (name, mount) => {
    S.figures[name] = mount;
    for (const host of document.querySelectorAll(`[data-s2s-figure="${name}"]`)) {
      if (host.shadowRoot) continue;
      const root = host.attachShadow({ mode: "open" });
      // Notebook and page shortcuts must not fire while one types in a figure ("d d" deletes a cell).
      root.addEventListener("keydown", (event) => {
        if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
      });
      try {
        const data = JSON.parse(host.querySelector('script[type="application/json"]').textContent);
        root.append(S.h("style", {}, S.css));
        mount(root, data, host);
      } catch (error) {
        console.error(error);
        root.replaceChildren(document.createElement("slot")); // the textual account stays readable
      }
      S.hosts.add(new WeakRef(host));
      host.dataset.theme = S.theme();
    }
  };

  // --- theme: the page's own switch first, the system's preference otherwise.

  S.theme = () => {
    const page = document.documentElement;
    const { body } = document;
    if (/^(dark|light)$/.test(page.dataset.theme)) return page.dataset.theme; // Jupyter Book
    if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
    if (page.getAttribute("theme") === "dark" || body.classList.contains("vscode-dark")) return "dark";
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  S.retheme = () => {
    for (const ref of S.hosts) {
      const host = ref.deref();
      if (host) host.dataset.theme = S.theme();
      else S.hosts.delete(ref);
    }
  };
  if (!S.watching) {
    S.watching = true;
    const observer = new MutationObserver(() => S.retheme());
    observer.observe(document.documentElement, { attributeFilter: ["data-theme", "theme"] });
    observer.observe(document.body, { attributeFilter: ["data-jp-theme-light", "class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => S.retheme());
  }

  // --- DOM helpers.

  const build = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.flat().filter((child) => child != null));
    return node;
  };
  /** An HTML element; `onclick: f` adds a listener, `false` and `null` attributes are left out. */
  S.h = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
  /** The same for SVG. */
  S.svg = (tag, attributes = {}, ...children) =>
    build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  const MATH = { cdot: "·", times: "×", le: "≤", ge: "≥", ne: "≠", dots: "…", ldots: "…", to: "→" };
  /** Inline Markdown, as nodes: `code`, *emphasis*, **strong** and $math$ (shown plainly). */
  S.inline = (text) => {
    const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\$([^$]+)\$/g;
    const fragment = document.createDocumentFragment();
    let last = 0;
    for (const match of text.matchAll(pattern)) {
      fragment.append(text.slice(last, match.index));
      const [, code, strong, emphasis, math] = match;
      if (code) fragment.append(S.h("code", {}, code));
      else if (strong) fragment.append(S.h("strong", {}, strong));
      else if (emphasis) fragment.append(S.h("em", {}, emphasis));
      else {
        const plain = math
          .replace(/\\(?:text|mathrm)\{([^}]*)\}/g, "$1")
          .replace(/\\([a-z]+)/g, (whole, name) => MATH[name] ?? whole);
        fragment.append(S.h("em", { class: "math" }, plain));
      }
      last = match.index + match[0].length;
    }
    fragment.append(text.slice(last));
    return fragment;
  };

  /** A polite live region; `say(text)` is read out even when the text is the same as before. */
  S.liveRegion = () => {
    const node = S.h("p", { role: "status", "aria-live": "polite", class: "hidden" });
    let odd = false;
    const say = (text) => {
      odd = !odd;
      node.textContent = text + (odd ? "\u00a0" : "");
    };
    return { node, say };
  };

  /** A button that does `run`, with a name for those who do not see the label. */
  S.button = (label, name, run, extra = {}) =>
    S.h("button", { type: "button", "aria-label": name, title: name, onclick: run, ...extra }, label);

  /** The place of that of the values which lies nearest to `value`. */
  S.nearest = (values, value) => {
    const away = values.map((one) => Math.abs(one - value));
    return away.indexOf(Math.min(...away));
  };

  /** A whole number with its digits in groups: 12,345,678. */
  S.grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

  /** Radio pills and sliders over `settings`. Each calls `change` with the settings that it changes, as an
   * object; `refresh` puts them all where the settings are. Their looks are `S.controlsCss`. */
  S.controls = (settings, change) => {
    const shows = [];
    /** `options`: pairs of the settings that a pill stands for and its text. */
    const pills = (legend, name, options) => {
      const field = S.h("fieldset", { class: "pills" }, S.h("legend", {}, legend));
      for (const [chosen, text] of options) {
        const input = S.h("input", { type: "radio", name, value: text, onchange: () => change(chosen) });
        shows.push(() => { input.checked = Object.keys(chosen).every((key) => chosen[key] === settings[key]); });
        field.append(S.h("label", { class: "pill" }, input, text));
      }
      return field;
    };
    /** `values`: the positions it can take, shown as `text(value)`. */
    const slider = (label, key, values, text = S.grouped) => {
      const output = S.h("b", {});
      const input = S.h("input", {
        type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": label,
        oninput: () => change({ [key]: values[Number(input.value)] }),
      });
      shows.push(() => {
        input.value = S.nearest(values, settings[key]);
        input.setAttribute("aria-valuetext", text(settings[key]));
        output.textContent = text(settings[key]);
      });
      return S.h("label", { class: "slider" }, S.h("span", { class: "head" }, S.h("span", {}, label), output), input);
    };
    return { pills, slider, refresh: () => shows.forEach((show) => show()) };
  };

  /** A figure's onkeydown: the arrow keys, Home and End `go` to a step from 0 to `last()`; `now()` is where it is. */
  S.stepping = (go, now, last) => (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    const to = { ArrowRight: now() + 1, ArrowLeft: now() - 1, Home: 0, End: last() }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  };

  S.css = `
:host {
  color-scheme: light;
  --ink: #16202c; --muted: #526070; --paper: #ffffff; --panel: #f5f7fa; --line: #d5dce4; --edge: #808d9b;
  --accent: #1d5fa8; --on-accent: #ffffff; --tint: #e6f0fb; --focus: #b3470b;
  --good: #14713a; --good-tint: #e7f5ec; --bad: #b02a20; --bad-tint: #fdeeec;
  --mono: ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  display: block; margin: 1rem 0; font-size: 15px; line-height: 1.5; text-align: left; color: var(--ink);
}
:host([data-theme="dark"]) {
  color-scheme: dark;
  --ink: #e8edf3; --muted: #a5b1be; --paper: #14181d; --panel: #1c2228; --line: #343d47; --edge: #74818f;
  --accent: #8cc0f5; --on-accent: #0c1622; --tint: #1e3148; --focus: #ffb066;
  --good: #6fd197; --good-tint: #15291d; --bad: #ff9c92; --bad-tint: #34191a;
}
* { box-sizing: border-box; }
.figure {
  container-type: inline-size; background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  overflow: hidden;
}
h3, h4, p, ul, ol, dl, dd, fieldset, legend { margin: 0; padding: 0; border: 0; min-width: 0; }
h3 { font-size: 1.05em; font-weight: 650; line-height: 1.35; }
code, pre, .mono { font-family: var(--mono); font-size: 0.92em; font-variant-ligatures: none; }
code { overflow-wrap: anywhere; }
pre { margin: 0; overflow-x: auto; }
.math { font-family: Georgia, "Times New Roman", serif; }
.muted { color: var(--muted); }
.hidden {
  position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap;
}
button, input, select {
  font: inherit; color: inherit; min-height: 34px; border: 1px solid var(--edge); border-radius: 7px;
  background: var(--paper);
}
button { padding: 3px 12px; cursor: pointer; }
button:hover:not(:disabled) { border-color: var(--accent); background: var(--tint); }
button:disabled { color: var(--muted); border-color: var(--line); cursor: default; }
button.primary { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
button.primary:hover:not(:disabled) { background: var(--accent); filter: brightness(1.1); }
input, select { padding: 3px 8px; }
input[type="radio"] { min-height: 0; accent-color: var(--accent); }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
@media (forced-colors: active) { button.primary { border: 2px solid ButtonText; } }
`;

  /** For a figure with `S.controls` above its blocks; `--columns` says how many sliders stand side by side. */
  S.controlsCss = `
.controls { display: grid; gap: 12px; padding: 16px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.pills { display: flex; flex-wrap: wrap; align-items: center; gap: 5px; }
.pills legend { float: left; padding: 0 6px 0 0; color: var(--muted); font-size: 0.9em; line-height: 30px; }
.pill {
  display: inline-flex; align-items: center; min-height: 30px; padding: 1px 10px; border: 1px solid var(--edge);
  border-radius: 15px; background: var(--paper); font-size: 0.9em; cursor: pointer;
}
.pill input { position: absolute; opacity: 0; width: 1px; height: 1px; }
.pill:hover { border-color: var(--accent); background: var(--tint); }
.pill:has(input:checked) { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.pill:has(input:focus-visible) { outline: 3px solid var(--focus); outline-offset: 2px; }
.sliders { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); gap: 8px 20px; }
.slider { display: grid; }
.slider .head { display: flex; justify-content: space-between; gap: 8px; font-size: 0.9em; color: var(--muted); }
.slider b { color: var(--ink); font-family: var(--mono); }
input[type="range"] { width: 100%; padding: 0; border: 0; background: none; accent-color: var(--accent); }
.block { padding: 14px 18px; }
.total { font: 700 1.5em/1.3 var(--mono); }
.note { color: var(--muted); overflow-wrap: anywhere; }
@container (max-width: 700px) {
  .sliders { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .controls, .block { padding-inline: 12px; }
}
@media (forced-colors: active) { .pill:has(input:checked) { border: 3px solid Highlight; } }
`;
})();
