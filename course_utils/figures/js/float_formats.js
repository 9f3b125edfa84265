// The float-format explorer: any split of bits into sign, exponent and mantissa, and what it can hold.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h } = S;

  // --- Arithmetic. Pure, and equal to torch's: the tests compare the two, bit for bit.
  // A format is {e, m, fn}: bits of exponent and mantissa; fn: false for infinities and NaN as in IEEE
  // 754; true for "finite", as in E4M3FN, whose only special value is NaN, with all bits set, and where
  // an overflow saturates; "all" where every pattern is a number, as in FP6 and FP4.
  // Doubles hold every value of up to 8 exponent and 23 mantissa bits exactly.

  const bias = ({ e }) => 2 ** (e - 1) - 1;
  const limits = (format) => {
    const { e, m, fn } = format;
    const top = 2 ** e - 1 - (fn ? 0 : 1) - bias(format); // the largest exponent
    const max = 2 ** top * (2 - 2 ** -m * (fn === true ? 2 : 1)); // FN gives its last pattern to NaN
    const normal = 2 ** (1 - bias(format));
    return { bits: 1 + e + m, bias: bias(format), max, normal, subnormal: normal * 2 ** -m, eps: 2 ** -m };
  };

  /** The value of a bit pattern, from sign, exponent field and mantissa field. */
  const decode = (format, sign, exponent, mantissa) => {
    const { e, m, fn } = format;
    const negative = sign ? -1 : 1;
    const full = 2 ** e - 1;
    if (exponent === full && !fn) return mantissa ? NaN : negative * Infinity;
    if (exponent === full && mantissa === 2 ** m - 1 && fn === true) return NaN;
    if (exponent === 0) return negative * mantissa * 2 ** (1 - bias(format) - m);
    return negative * (1 + mantissa * 2 ** -m) * 2 ** (exponent - bias(format));
  };

  const toEven = (x) => {
    const floor = Math.floor(x);
    const rest = x - floor;
    return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
  };

  /** Exponent of |x| > 0: 2^k ≤ |x| < 2^(k + 1). */
  const exponentOf = (x) => {
    let k = Math.floor(Math.log2(x));
    if (2 ** k > x) k -= 1;
    if (2 ** (k + 1) <= x) k += 1;
    return k;
  };

  /** Fields {sign, exponent, mantissa} of the value nearest to x, ties to even. */
  const encode = (format, x) => {
    const { e, m, fn } = format;
    const full = 2 ** e - 1;
    const sign = x < 0 || Object.is(x, -0) ? 1 : 0;
    if (Number.isNaN(x)) return { sign: 0, exponent: full, mantissa: fn ? 2 ** m - 1 : 2 ** Math.max(m - 1, 0) };
    const size = Math.abs(x);
    const least = 1 - bias(format);
    const { max } = limits(format);
    const infinite = fn
      ? { sign, exponent: full, mantissa: 2 ** m - (fn === true ? 2 : 1) }
      : { sign, exponent: full, mantissa: 0 };
    if (size === Infinity) return infinite;
    if (size === 0) return { sign, exponent: 0, mantissa: 0 };
    let k = Math.max(exponentOf(size), least);
    let q = toEven(size / 2 ** (k - m)); // in units of the last place
    if (q === 2 ** (m + 1)) {
      q /= 2;
      k += 1;
    }
    if (q * 2 ** (k - m) > max) return infinite;
    if (q < 2 ** m) return { sign, exponent: 0, mantissa: q };
    return { sign, exponent: k + bias(format), mantissa: q - 2 ** m };
  };

  const round = (format, x) => {
    const { sign, exponent, mantissa } = encode(format, x);
    return decode(format, sign, exponent, mantissa);
  };

  S.floats = { limits, decode, encode, round };

  // --- The figure.

  const show = (x) => {
    if (Number.isNaN(x)) return "NaN";
    if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
    const size = Math.abs(x);
    return size !== 0 && (size < 1e-4 || size >= 1e7) ? x.toExponential(7).replace(/\.?0+e/, "e") : String(Number(x.toPrecision(9)));
  };
  const power = (x) => `2^${exponentOf(x)}`;

  const mount = (root, data) => {
    const live = S.liveRegion();
    let format = { ...data.presets[data.opens] };
    let wanted = data.value;
    let fields = encode(format, wanted);

    const presets = h("div", { class: "presets", role: "group", "aria-label": "Formats" });
    const bits = h("div", { class: "bits", role: "group", "aria-label": "Bits: press one to flip it" });
    const value = h("output", { class: "value" });
    const sum = h("p", { class: "sum mono" });
    const facts = h("dl", { class: "facts" });
    const bars = h("div", { class: "bars" });
    const number = h("input", { type: "text", inputmode: "decimal", value: String(wanted), "aria-label": "A number to round" });
    const problem = h("p", { class: "problem", "aria-hidden": "true" });
    const slider = (label, min, max, name) =>
      h("input", {
        type: "range", min, max, step: 1, "aria-label": label,
        oninput: (event) => change({ ...format, name: null, fn: false, [name]: Number(event.target.value) }),
      });
    const exponentBits = slider("Exponent bits", 2, 8, "e");
    const mantissaBits = slider("Mantissa bits", 1, 23, "m");
    const counts = { e: h("b", {}), m: h("b", {}) };

    const read = () => {
      const text = number.value.trim().toLowerCase();
      const x = /^[+-]?inf(inity)?$/.test(text) ? (text[0] === "-" ? -Infinity : Infinity) : text === "nan" ? NaN : Number(text);
      if (text === "" || (Number.isNaN(x) && text !== "nan")) {
        problem.textContent = `“${number.value}” is no number. Write one such as 0.1, 65520, 1e-8 or inf.`;
        live.say(problem.textContent);
        return;
      }
      problem.textContent = "";
      wanted = x;
      fields = encode(format, wanted);
      draw();
      say();
    };
    const form = h(
      "form",
      { class: "ask", novalidate: true, onsubmit: (event) => { event.preventDefault(); read(); } },
      h("label", {}, "Round ", number),
      h("button", { type: "submit", class: "primary" }, "to the nearest"),
      h("span", { class: "tries" }, data.tries.map((text) =>
        h("button", { type: "button", onclick: () => { number.value = text; read(); } }, text))),
    );

    function change(next) {
      format = next;
      fields = encode(format, wanted);
      draw();
      say();
    }
    const current = () => decode(format, fields.sign, fields.exponent, fields.mantissa);
    const say = () => live.say(`${format.name ?? `1 + ${format.e} + ${format.m} bits`}: ${show(current())}`);

    const flip = (kind, place) => {
      const at = 2 ** place; // not ^: 23 bits fit, but keep to plain arithmetic
      fields = { ...fields, [kind]: Math.floor(fields[kind] / at) % 2 ? fields[kind] - at : fields[kind] + at };
      wanted = current();
      number.value = show(wanted);
      problem.textContent = "";
      draw([kind, place]);
      say();
    };

    const bit = (kind, place) => {
      const on = Math.floor(fields[kind] / 2 ** place) % 2;
      return h(
        "button",
        {
          type: "button", class: `bit ${kind}`, "data-bit": `${kind}${place}`, "aria-pressed": String(Boolean(on)),
          "aria-label": kind === "sign" ? "sign bit" : `${kind} bit ${place}`,
          onclick: () => flip(kind, place),
        },
        String(on),
      );
    };
    const field = (kind, count) =>
      h("div", { class: "field" },
        h("div", { class: "row" }, Array.from({ length: count }, (_, i) => bit(kind, count - 1 - i))),
        h("span", { class: `label ${kind}` }, count > 1 ? `${kind} (${count})` : kind));

    const account = () => {
      const { sign, exponent, mantissa } = fields;
      const x = current();
      const minus = sign ? "−" : "";
      const { m } = format;
      if (Number.isNaN(x)) return "all exponent bits set: not a number";
      if (!Number.isFinite(x)) return "all exponent bits set, mantissa 0: infinity";
      if (exponent === 0 && mantissa === 0) return `${minus}0`;
      if (exponent === 0) return `subnormal: ${minus}${mantissa} / 2^${m} × 2^${1 - bias(format)}`;
      return `${minus}(1 + ${mantissa} / 2^${m}) × 2^(${exponent} − ${bias(format)})`;
    };

    const LOW = -152, HIGH = 130; // the axis of the bars, in powers of two
    const bar = (preset, own) => {
      const l = limits(preset);
      const at = (x) => `${(100 * (Math.log2(x) - LOW)) / (HIGH - LOW)}%`;
      const span = (from, to, kind) =>
        h("span", { class: kind, style: `left:${at(from)};width:calc(${at(to)} - ${at(from)})` });
      const mark = Number.isFinite(wanted) && wanted !== 0 && Math.log2(Math.abs(wanted)) > LOW && Math.log2(Math.abs(wanted)) < HIGH
        ? h("span", { class: "mark", style: `left:${at(Math.abs(wanted))}` }) : null;
      return h("div", { class: own ? "bar own" : "bar", title: `${power(l.subnormal)} to ${show(l.max)}` },
        h("span", { class: "name" }, preset.name ?? "yours"),
        h("span", { class: "track" }, span(l.subnormal, l.normal, "sub"), span(l.normal, l.max, "full"), mark));
    };

    function draw(focus) {
      const l = limits(format);
      const x = current();
      presets.replaceChildren(...data.presets.map((preset) =>
        h("button", {
          type: "button", class: "preset", "aria-pressed": String(preset.name === format.name),
          onclick: (event) => { const at = event.target.textContent; change({ ...preset }); [...presets.children].find((b) => b.textContent === at).focus(); },
        }, preset.name)));
      exponentBits.value = format.e;
      mantissaBits.value = format.m;
      counts.e.textContent = format.e;
      counts.m.textContent = format.m;
      bits.replaceChildren(field("sign", 1), field("exponent", format.e), field("mantissa", format.m));
      if (focus) bits.querySelector(`[data-bit="${focus.join("")}"]`).focus();
      value.textContent = show(x);
      sum.textContent = account();
      const ulp = fields.exponent === 0 ? l.subnormal : 2 ** (fields.exponent - bias(format) - format.m);
      const error = Number.isFinite(wanted) && Number.isFinite(x) ? Math.abs(x - wanted) : NaN;
      const rows = [
        ["bits", `${l.bits}`],
        ["largest", show(l.max)],
        ["smallest normal", `${show(l.normal)} = ${power(l.normal)}`],
        ["smallest subnormal", `${show(l.subnormal)} = ${power(l.subnormal)}`],
        ["epsilon", `${show(l.eps)} = ${power(l.eps)}`],
        ["step here", Number.isFinite(x) ? show(ulp) : "none"],
        ["rounding error", Number.isNaN(error) ? "none" : error === 0 ? "0" : `${show(error)} (${show(Number((100 * error / Math.abs(wanted)).toPrecision(2)))} %)`],
      ];
      facts.replaceChildren(...rows.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
      const all = data.presets.map((preset) => bar(preset, preset.name === format.name));
      if (!format.name) all.unshift(bar(format, true));
      bars.replaceChildren(...all);
    }

    root.append(
      h("style", {}, STYLE),
      h("div", { class: "figure" },
        h("div", { class: "controls" },
          presets,
          h("div", { class: "sliders" },
            h("label", {}, "exponent bits ", counts.e, exponentBits),
            h("label", {}, "mantissa bits ", counts.m, mantissaBits))),
        h("div", { class: "block" }, h("div", { class: "scroll" }, bits), h("p", { class: "result" }, value), sum),
        h("div", { class: "block" }, form, problem),
        h("div", { class: "block two" }, facts,
          h("div", {}, h("p", { class: "heading" }, "Range, in powers of two"), bars,
            h("p", { class: "muted help" }, "Solid: normal numbers. Pale: subnormals. The line is your number."))),
        live.node),
    );
    draw();
  };

  const STYLE = `
:host { --sign: #8a5a00; --exp: #0a6e63; --man: #7a2bc4; }
:host([data-theme="dark"]) { --sign: #f0c24a; --exp: #4fd6c1; --man: #cda2ff; }
.controls { display: grid; gap: 12px; padding: 16px 18px; background: var(--panel); border-bottom: 1px solid var(--line); }
.presets, .sliders, .ask, .tries { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; }
.sliders { gap: 6px 24px; }
.sliders label { display: inline-flex; align-items: center; gap: 8px; }
.sliders b { min-width: 1.6em; text-align: right; font-family: var(--mono); }
input[type="range"] { padding: 0; accent-color: var(--accent); width: 150px; border: 0; background: none; }
.preset[aria-pressed="true"] { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.block { padding: 14px 18px; border-bottom: 1px solid var(--line); }
.block:last-of-type { border-bottom: 0; }
.scroll { overflow-x: auto; padding: 3px; }
.bits { display: flex; flex-wrap: wrap; gap: 10px 12px; }
.field { display: grid; gap: 4px; }
.row { display: flex; flex-wrap: wrap; gap: 2px; }
.bit { min-height: 34px; width: 24px; padding: 0; font-family: var(--mono); border-radius: 5px; border-color: var(--tone); }
.bit[aria-pressed="true"] { background: var(--tone); color: var(--paper); font-weight: 700; }
.bit[aria-pressed="true"]:hover:not(:disabled) { background: var(--tone); filter: brightness(1.1); }
.sign { --tone: var(--sign); } .exponent { --tone: var(--exp); } .mantissa { --tone: var(--man); }
.label { color: var(--tone); font-size: 0.82em; white-space: nowrap; }
.result { margin-top: 10px; font: 700 1.6em/1.3 var(--mono); overflow-wrap: anywhere; }
.sum { color: var(--muted); }
.ask { gap: 8px 12px; }
.ask input { width: 9em; font-family: var(--mono); }
.tries button { font-family: var(--mono); font-size: 0.9em; border-color: transparent; color: var(--accent); }
.problem { color: var(--bad); font-weight: 550; }
.two { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.2fr); gap: 18px; }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 14px; align-content: start; }
dt { color: var(--muted); } dd { font-family: var(--mono); font-size: 0.92em; }
.heading { font-size: 0.85em; font-weight: 650; color: var(--muted); margin-bottom: 7px; }
.bar { display: grid; grid-template-columns: 6.4em minmax(0, 1fr); gap: 8px; align-items: center; height: 24px; }
.name { font-size: 0.85em; color: var(--muted); white-space: nowrap; }
.own .name { color: var(--ink); font-weight: 700; }
.track { position: relative; height: 14px; background: var(--panel); border-radius: 4px; overflow: hidden; }
.track span { position: absolute; top: 0; bottom: 0; }
.full { background: var(--edge); } .sub { background: var(--edge); opacity: 0.4; }
.own .full, .own .sub { background: var(--accent); }
.track .mark { width: 2px; background: var(--focus); }
.help { font-size: 0.85em; margin-top: 6px; }
.figure { container-name: formats; }
@container formats (max-width: 620px) {
  .two { grid-template-columns: minmax(0, 1fr); }
  .controls, .block { padding-inline: 12px; }
}
`;

  S.define("float_formats", mount);
})();
