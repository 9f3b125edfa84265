// The forms in which a reader commits to an answer: predictions, and the quiz at a chapter's end.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, inline } = S;

  // --- Judging. The same rules as in course_utils/questions; the tests hold the two together.

  /** One spelling for all the ways to write a tuple: `[4, 1]`, `4 1` and `torch.Size([4, 1])`. */
  const tupleForm = (text) => {
    let form = text.replaceAll("torch.Size", "").replace(/[[{]/g, "(").replace(/[\]}]/g, ")").trim();
    if (!form.includes(",")) form = form.replace(/(\w)\s+(?=[\w-])/g, "$1,");
    form = form.replace(/\s+/g, "").replace(/,(?=\)|$)/g, "");
    while (/^\(.*\)$/.test(form) && closesAtEnd(form)) form = form.slice(1, -1).replace(/,$/, "");
    return form;
  };
  const closesAtEnd = (form) => {
    let depth = 0;
    for (let at = 0; at < form.length; at++) {
      depth += form[at] === "(" ? 1 : form[at] === ")" ? -1 : 0;
      if (depth === 0) return at === form.length - 1;
    }
    return false;
  };
  const textForm = (text) =>
    text.trim().replace(/^(["'`])(.*)\1$/, "$2").replace(/\s+/g, " ").replace(/^torch\./, "").toLowerCase();

  const matches = (kind, truth, answer) => {
    if (kind === "bool") return answer === truth;
    if (kind === "int") return answer.trim() !== "" && Number(answer) === Number(truth);
    if (kind === "float") {
      const [a, b] = [Number(answer), Number(truth)];
      return answer.trim() !== "" && (a === b || Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b)));
    }
    return kind === "tuple" ? tupleForm(answer) === tupleForm(truth) : textForm(answer) === textForm(truth);
  };

  S.questions = { matches };

  const shown = (kind, value) => (kind === "bool" ? (value ? "yes" : "no") : value);
  const mark = (right, words) =>
    h("strong", { class: right ? "good" : "bad" }, right ? "✓ " : "✗ ", words);
  const codeBlock = (code) => (code ? h("pre", { class: "code", tabindex: 0 }, h("code", {}, code)) : null);
  const label = (text, isCode) => (isCode ? h("code", {}, text) : inline(text));

  // --- A prediction: every ask is answered, then all are judged at once.

  const HINTS = { tuple: "such as (4, 1)", int: "a whole number", float: "a number", str: "a word or two" };
  let forms = 0; // radio groups and labels need names that no other form on the page has

  const prediction = (root, data) => {
    const id = `p${(forms += 1)}-${Math.random().toString(36).slice(2, 8)}`;
    const live = S.liveRegion();
    const summary = h("p", { class: "summary", tabindex: -1 });
    const commit = h("button", { type: "submit", class: "primary" }, "Commit");
    const again = h("button", { type: "button", onclick: () => reopen() }, "Try again");

    const asks = data.asks.map((ask, n) => {
      const given = data.answers?.[n] ?? null;
      const verdict = h("p", { class: "verdict", id: `${id}-${n}-verdict` });
      const question = h("span", { id: `${id}-${n}`, class: "ask" }, label(ask.text, ask.code));
      let control, inputs, read;
      if (ask.kind === "bool") {
        inputs = [true, false].map((value) =>
          h("input", { type: "radio", name: `${id}-${n}`, value: String(value), checked: given === value }),
        );
        control = h(
          "span",
          { class: "choices", role: "radiogroup", "aria-labelledby": `${id}-${n}`, "aria-describedby": `${id}-${n}-verdict` },
          inputs.map((input) => h("label", { class: "pill" }, input, shown("bool", input.value === "true"))),
        );
        read = () => inputs.find((input) => input.checked)?.value === "true" || (inputs[1].checked ? false : null);
      } else {
        const numeric = ask.kind === "int" || ask.kind === "float";
        const input = h("input", {
          type: numeric ? "number" : "text",
          step: ask.kind === "int" ? 1 : "any",
          placeholder: HINTS[ask.kind],
          value: given,
          autocomplete: "off",
          autocapitalize: "off",
          spellcheck: "false",
          class: "mono",
          "aria-labelledby": `${id}-${n}`,
          "aria-describedby": `${id}-${n}-verdict`,
        });
        [control, inputs] = [input, [input]];
        read = () => (input.value.trim() === "" ? null : input.value);
      }
      const node = h("li", {}, h("div", { class: "line" }, question, control), verdict);
      return { ...ask, node, verdict, inputs, read };
    });

    const form = h(
      "form",
      {
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          submit();
        },
      },
      h("ol", {}, asks.map((ask) => ask.node)),
      h("div", { class: "actions" }, summary, commit, again),
    );

    const tell = (text) => {
      summary.textContent = text;
      live.say(text);
    };

    function submit() {
      const open = asks.filter((ask) => ask.read() === null);
      if (open.length) {
        tell(`${open.length} of ${asks.length} still open: commit to every answer first.`);
        open[0].inputs[0].focus();
        return;
      }
      reveal();
      summary.focus({ preventScroll: true });
    }

    function reveal() {
      let right = 0;
      for (const ask of asks) {
        const answer = ask.read();
        const ok = matches(ask.kind, ask.truth, answer) || ask.accept.some((other) => matches(ask.kind, other, answer));
        right += ok;
        ask.node.className = ok ? "right" : "wrong";
        const said = shown(ask.kind, answer);
        const truth = h("code", {}, shown(ask.kind, ask.truth));
        ask.verdict.replaceChildren(
          mark(ok, ok ? "Right" : "Not right"),
          ok ? ": " : `: you said ${said}, it is `,
          truth,
          ". ",
          inline(ask.why),
        );
        for (const input of ask.inputs) input.disabled = true;
      }
      tell(`${right} of ${asks.length} right.`);
      [commit.hidden, again.hidden] = [true, false];
    }

    function reopen() {
      for (const ask of asks) {
        ask.node.className = "";
        ask.verdict.replaceChildren();
        for (const input of ask.inputs) input.disabled = false;
      }
      [commit.hidden, again.hidden] = [false, true];
      summary.textContent = "";
      live.say("Answers open again.");
      asks[0].inputs.find((input) => input.type !== "radio" || input.checked)?.focus();
    }

    root.append(
      h("style", {}, STYLE),
      h(
        "div",
        { class: "figure" },
        h("div", { class: "head" }, h("p", { class: "kind" }, "Predict"), h("h3", {}, inline(data.title))),
        codeBlock(data.code),
        form,
        live.node,
      ),
    );
    again.hidden = true;
    if (data.answers && asks.every((ask) => ask.read() !== null)) reveal();
    if (data.problem) summary.textContent = data.problem;
  };

  // --- The quiz: one question at a time is answered; the first answer to each is the one that counts.

  const KEY = "strides-to-shards:quiz:";
  const load = (chapter) => {
    try {
      return JSON.parse(localStorage.getItem(KEY + chapter)) ?? {};
    } catch {
      return {}; // no storage, or none allowed: the quiz works, and forgets
    }
  };
  const save = (chapter, answers) => {
    try {
      if (answers) localStorage.setItem(KEY + chapter, JSON.stringify(answers));
      else localStorage.removeItem(KEY + chapter);
    } catch {
      /* as above */
    }
  };

  const quiz = (root, data) => {
    const id = `q${(forms += 1)}-${Math.random().toString(36).slice(2, 8)}`;
    const live = S.liveRegion();
    const score = h("p", { class: "summary", tabindex: -1 });
    const restart = h("button", { type: "button", onclick: () => clear() }, "Start over");
    const stored = data.answers ?? load(data.chapter); // question id → number of the choice first made
    let answers = {};

    const questions = data.questions.map((question, n) => {
      const check = h("button", { type: "submit", class: "primary" }, "Check");
      const verdict = h("p", { class: "verdict", tabindex: -1 });
      const choices = question.choices.map((choice, c) => {
        const input = h("input", { type: "radio", name: `${id}-${n}`, value: c, "aria-describedby": `${id}-${n}-${c}` });
        const reason = h("p", { class: "why", id: `${id}-${n}-${c}` });
        const node = h("li", { class: "choice" }, h("label", {}, input, h("span", {}, label(choice.text, choice.code))), reason);
        return { ...choice, input, reason, node };
      });
      const form = h(
        "form",
        {
          novalidate: true,
          onsubmit: (event) => {
            event.preventDefault();
            const picked = choices.findIndex((choice) => choice.input.checked);
            if (picked < 0) {
              verdict.textContent = "Choose an answer first.";
              live.say(verdict.textContent);
              choices[0].input.focus();
              return;
            }
            answers[question.id] = picked;
            save(data.chapter, answers);
            reveal(picked);
            live.say(verdict.textContent);
            verdict.focus({ preventScroll: true });
          },
        },
        h(
          "fieldset",
          {},
          h("legend", {}, h("span", { class: "number" }, `${n + 1}.`), " ", inline(question.text)),
          codeBlock(question.code),
          h("ul", { class: "answers" }, choices.map((choice) => choice.node)),
        ),
        h("div", { class: "actions" }, check, verdict),
      );
      function reveal(picked) {
        choices.forEach((choice, c) => {
          choice.input.checked = c === picked;
          choice.input.disabled = true;
          choice.node.className = `choice ${choice.right ? "right" : c === picked ? "wrong" : ""}`;
          const words = choice.right ? "Right" : c === picked ? "Not right, you chose this" : "Not this one";
          choice.reason.replaceChildren(mark(choice.right, words), ": ", inline(choice.why));
        });
        const right = choices[picked].right;
        verdict.replaceChildren(mark(right, right ? "Right." : "Not right: see why below each choice."));
        verdict.className = "verdict";
        check.hidden = true;
        drawScore();
      }
      function hide() {
        for (const choice of choices) {
          choice.input.checked = choice.input.disabled = false;
          choice.node.className = "choice";
          choice.reason.replaceChildren();
        }
        verdict.replaceChildren();
        check.hidden = false;
      }
      return { ...question, choices, form, reveal, hide };
    });

    function drawScore() {
      const done = questions.filter((question) => question.id in answers);
      const right = done.filter((question) => question.choices[answers[question.id]].right).length;
      score.textContent = done.length
        ? `${right} right of ${done.length} answered, ${questions.length} in all.`
        : `${questions.length} questions. What you answer stays in this browser.`;
      restart.hidden = done.length === 0;
    }
    function clear() {
      answers = {};
      save(data.chapter, null);
      for (const question of questions) question.hide();
      drawScore();
      live.say("The quiz starts over.");
      questions[0].choices[0].input.focus();
    }

    root.append(
      h("style", {}, STYLE),
      h(
        "div",
        { class: "figure" },
        h("div", { class: "head" }, h("p", { class: "kind" }, "Quiz"), h("h3", {}, data.title)),
        ...questions.map((question) => question.form),
        h("div", { class: "actions foot" }, score, restart),
        live.node,
      ),
    );
    for (const question of questions) {
      const picked = stored[question.id];
      if (!question.choices[picked]) continue;
      answers[question.id] = picked;
      question.reveal(picked);
    }
    drawScore();
    if (data.problem) score.textContent = data.problem;
  };

  const STYLE = `
.head { padding: 14px 18px 12px; overflow-wrap: anywhere; background: var(--panel); border-bottom: 1px solid var(--line); }
.kind {
  font-size: 0.78em; font-weight: 650; letter-spacing: 0.06em; text-transform: uppercase; color: var(--accent);
  margin-bottom: 2px;
}
.code { padding: 10px 18px; border-bottom: 1px solid var(--line); line-height: 1.55; }
fieldset .code { border: 1px solid var(--line); border-radius: 7px; padding: 8px 12px; margin-bottom: 8px; background: var(--panel); }
pre code { font-size: inherit; }
p code, li code, legend code, h3 code { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; padding: 0 4px; }
ol, ul { list-style: none; }
ol > li { padding: 9px 18px 9px 15px; border-left: 3px solid transparent; border-bottom: 1px solid var(--line); }
.line { display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: 8px 20px; }
.ask { flex: 1 1 220px; min-width: 0; }
.ask > code { background: none; border: 0; padding: 0; font-size: 1em; }
.line > input { width: 13em; max-width: 100%; }
.choices { display: inline-flex; gap: 6px; }
.pill {
  position: relative; display: inline-flex; align-items: center; min-height: 32px; padding: 2px 14px; border-radius: 16px;
  border: 1px solid var(--edge); cursor: pointer;
}
.pill:hover { border-color: var(--accent); background: var(--tint); }
.pill input { position: absolute; inset: 0; opacity: 0; margin: 0; cursor: pointer; }
.pill:has(:checked) { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
.pill:has(:focus-visible) { outline: 3px solid var(--focus); outline-offset: 2px; }
.pill:has(:disabled):not(:has(:checked)) { border-color: var(--line); color: var(--muted); background: none; }
.pill:has(:disabled), .pill :disabled, input:disabled { cursor: default; }
.line > input:disabled { color: var(--ink); opacity: 1; }
::placeholder { color: var(--muted); opacity: 1; }
.verdict:empty, .why:empty { display: none; }
ol .verdict { margin-top: 5px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.right { background: var(--good-tint); border-left-color: var(--good) !important; }
.wrong { background: var(--bad-tint); border-left-color: var(--bad) !important; }
.right code, .wrong code { background: none; }
.actions { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 14px; padding: 12px 18px; }
.summary { font-weight: 600; }
ol + .actions .summary { order: 1; }
.summary:focus, .verdict:focus { outline: none; }
.foot { justify-content: space-between; background: var(--panel); min-height: 58px; }
fieldset { padding: 14px 18px 0; }
legend { padding: 0 0 8px; font-weight: 600; float: left; width: 100%; }
legend + * { clear: both; }
.number { color: var(--accent); }
.choice { border-left: 3px solid transparent; border-radius: 7px; padding: 5px 10px; margin-bottom: 3px; }
.choice label { display: flex; gap: 10px; align-items: baseline; cursor: pointer; }
.choice:not(.right, .wrong):hover { background: var(--tint); }
.choice:not(.right, .wrong) .bad { color: var(--muted); font-weight: 600; }
.choice .why { padding: 2px 0 2px 24px; font-size: 0.95em; }
.choice input { flex: none; width: 15px; height: 15px; position: relative; top: 2px; margin: 0; }
form + form { border-top: 1px solid var(--line); }
form + .foot { border-top: 1px solid var(--line); }
[hidden] { display: none !important; }
@container (max-width: 480px) {
  .head, .code, .actions, fieldset { padding-inline: 13px; }
  ol > li { padding-inline: 10px 13px; }
  .line > input { width: 100%; }
}
`;

  S.define("questions", (root, data) => (data.questions ? quiz : prediction)(root, data));
})();
