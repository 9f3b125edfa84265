// The pipeline explorer: layers, ranks, micro-batches and a schedule; its timeline, bubble and memory.
(() => {
  "use strict";
  const S = globalThis.StridesToShards;
  const { h, svg } = S;

  // --- Arithmetic. Pure, and equal to plan_pipeline in course_utils/figures/pipeline_and_3d.py: the tests
  // compare the two. An action is [kind, stage, micro-batch].

  const range = (n) => Array.from({ length: n }, (_, i) => i);

  /** `warmup` forwards, then one of each in turn, then the other backwards; `lag`: how far W is behind I. */
  const inTurn = (forwards, backwards, warmup, lag = null) => {
    const actions = forwards.slice(0, warmup);
    let weights = 0;
    backwards.forEach(([kind, stage, i], n) => {
      actions.push(...forwards.slice(warmup + n, warmup + n + 1), [lag === null ? kind : "I", stage, i]);
      if (lag !== null && n >= lag) {
        const [, s, j] = backwards[weights++];
        actions.push(["W", s, j]);
      }
    });
    if (lag !== null) for (const [, s, j] of backwards.slice(weights)) actions.push(["W", s, j]);
    return actions;
  };

  const schedule = (name, p, m) => {
    if (name === "GPipe") return range(p).map((r) => ["F", "B"].flatMap((kind) => range(m).map((i) => [kind, r, i])));
    const chunks = name === "interleaved" && p > 1 ? 2 : 1;
    const groups = Math.max(1, Math.floor(m / p));
    if (chunks > 1 && m % groups) return null;
    const group = chunks > 1 ? m / groups : m;
    const order = range(m / group).flatMap((g) => range(chunks).flatMap((c) => range(group).map((i) => [c, g * group + i])));
    return range(p).map((r) => {
      const forwards = order.map(([c, i]) => ["F", c * p + r, i]);
      const backwards = order.map(([c, i]) => ["B", (chunks - 1 - c) * p + r, i]);
      const warmup = chunks > 1 ? group + 2 * (p - 1 - r) : p - 1 - r;
      return inTurn(forwards, backwards, warmup, name === "zero bubble" ? r : null);
    });
  };

  const timeline = (lists, sizes, hop) => {
    const key = (kind, stage, i) => `${stage}${kind}${i}`;
    const rankOf = new Map(lists.flatMap((own, r) => own.map(([, stage]) => [stage, r])));
    const last = Math.max(...rankOf.keys());
    const at = lists.map(() => 0), free = lists.map(() => 0), ends = new Map(), boxes = [];
    const needs = ([kind, stage, i]) => {
      if (kind === "F") return stage ? [["F", stage - 1, i]] : [];
      if (kind === "W") return [["I", stage, i]];
      return [["F", stage, i], ...(stage < last ? [[kind, stage + 1, i]] : [])];
    };
    for (let moved = true; moved;) {
      moved = false;
      lists.forEach((own, r) => {
        while (at[r] < own.length) {
          const action = own[at[r]], before = needs(action);
          if (!before.every((need) => ends.has(key(...need)))) break;
          const [kind, stage, i] = action;
          let start = free[r];
          for (const need of before) start = Math.max(start, ends.get(key(...need)) + (rankOf.get(need[1]) === r ? 0 : hop));
          free[r] = start + sizes[stage] * (kind === "B" ? 2 : 1);
          ends.set(key(...action), free[r]);
          boxes.push({ rank: r, kind, stage, i, start, end: free[r] });
          at[r] += 1;
          moved = true;
        }
      });
    }
    return boxes;
  };

  const planPipeline = (s) => {
    const { layers, ranks, microbatches, hop } = s;
    const stages = ranks * (s.schedule === "interleaved" && ranks > 1 ? 2 : 1);
    const lists = layers < stages ? null : schedule(s.schedule, ranks, microbatches);
    if (!lists) return null;
    const sizes = range(stages).map((n) => Math.floor((layers * (n + 1)) / stages) - Math.floor((layers * n) / stages));
    const boxes = timeline(lists, sizes, hop);
    const seconds = Math.max(...boxes.map((box) => box.end));
    const busy = boxes.reduce((sum, box) => sum + box.end - box.start, 0);
    const held = lists.map((own) => {
      let alive = 0, peak = 0;
      for (const [kind, stage] of own) {
        alive += kind === "F" ? sizes[stage] : kind === "I" ? 0 : -sizes[stage];
        peak = Math.max(peak, alive);
      }
      return peak;
    });
    return { seconds, bubble: 1 - busy / (ranks * seconds), held, boxes };
  };
  S.pipeline = { planPipeline };

  // --- The figure.

  const LANE = 26, LEFT = 54, WIDTH = 760;

  const mount = (root, data) => {
    const live = S.liveRegion();
    const settings = { ...data.settings };
    const { pills, slider, refresh } = S.controls(settings, change);
    const total = h("span", { class: "total" });
    const note = h("p", { class: "note" });
    const lanes = h("div", { class: "lanes" });

    function sentence(plan) {
      if (!plan) {
        return settings.layers < 2 * settings.ranks
          ? "There are fewer layers than stages."
          : "Interleaved: the micro-batches must form groups of one size, of at least as many as there are ranks.";
      }
      return `${(100 * plan.bubble).toFixed(1)} % waiting, ${+plan.seconds.toFixed(2)} units of time.`;
    }
    function change(changes) {
      Object.assign(settings, changes);
      draw();
      live.say(sentence(planPipeline(settings)));
    }
    function draw() {
      refresh();
      const plan = planPipeline(settings);
      total.textContent = plan ? `${(100 * plan.bubble).toFixed(1)} % waiting` : "cannot be had";
      note.textContent = plan
        ? `The step takes ${+plan.seconds.toFixed(2)} forwards of a layer. Boxes: micro-batches, forward (filled), backward (tinted), gradients of the weights alone (dashed). At the right: layers whose activations a rank holds at its peak.`
        : sentence(plan);
      if (!plan) return lanes.replaceChildren();
      const { ranks } = settings;
      const x = (t) => LEFT + (t / plan.seconds) * WIDTH;
      const picture = svg("svg", { viewBox: `0 0 ${LEFT + WIDTH + 90} ${ranks * LANE + 4}`, "aria-hidden": "true" });
      for (let rank = 0; rank < ranks; rank += 1) {
        const y = rank * LANE;
        picture.append(
          svg("rect", { class: "wait", x: LEFT, y: y + 3, width: WIDTH, height: LANE - 6 }),
          svg("text", { x: 0, y: y + 17 }, `rank ${rank}`),
          svg("text", { x: LEFT + WIDTH + 8, y: y + 17 }, `${plan.held[rank]} layers`));
      }
      for (const box of plan.boxes) {
        const width = x(box.end) - x(box.start), y = box.rank * LANE + 3;
        const later = box.stage >= ranks ? " later" : "";
        picture.append(svg("rect", { class: `box ${box.kind}${later}`, x: x(box.start), y, width, height: LANE - 6 }));
        if (width > 15) {
          picture.append(svg("text", { class: `label ${box.kind}${later}`, x: x(box.start) + width / 2, y: y + 14 }, String(box.i)));
        }
      }
      lanes.replaceChildren(picture);
    }

    const { choices } = data;
    root.append(
      h("style", {}, STYLE),
      h("div", { class: "figure" },
        h("div", { class: "controls" },
          pills("schedule", "schedule", data.names.map((name) => [{ schedule: name }, name])),
          h("div", { class: "sliders" },
            slider("layers", "layers", choices.layers),
            slider("ranks", "ranks", choices.ranks),
            slider("micro-batches", "microbatches", choices.microbatches),
            slider("a message", "hop", choices.hop, (hop) => `${hop} forwards`))),
        h("div", { class: "block" }, h("h3", {}, total), note, lanes),
        live.node),
    );
    draw();
  };

  const STYLE = `${S.controlsCss}
.sliders { --columns: 4; }
.lanes { margin-top: 10px; overflow-x: auto; }
svg { width: 100%; min-width: 560px; display: block; }
text { font: 12px var(--mono); fill: var(--ink); }
.label { text-anchor: middle; font-size: 11px; }
.wait { fill: var(--panel); stroke: var(--line); }
.box { stroke: var(--paper); }
.box.F { fill: var(--accent); }
.label.F { fill: var(--on-accent); }
.box.B, .box.I { fill: var(--tint); stroke: var(--accent); }
.box.W { fill: var(--paper); stroke: var(--accent); stroke-dasharray: 3 2; }
.box.later { opacity: 0.7; }
`;

  S.define("pipeline_explorer", mount);
})();
