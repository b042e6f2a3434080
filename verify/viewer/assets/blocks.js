// The page of a program of thread blocks: its steps in one run, with the wait cycle or the race.

const STEP_TONES = ["faint", "weight", "forward", "input", "fused"];
const STEP_WORDS = [
  "waits or signals",
  "computes or copies",
  "sends",
  "receives",
  "receives and sends",
];
const OPERATION = /^step \d+: ([a-z_]+)/; // of a step's words
const STATES = ["", "stands here and waits for ever", "is never reached"];

class BlocksView {
  constructor() {
    const faulty = new Set(model.faults.flatMap((fault) => fault.faulty));
    // `block` is an index of model.rows; `row` is where it is shown, see layOut.
    this.steps = model.steps.map(([block, begin, end, state, kind, words], index) => ({
      block,
      begin,
      end,
      state,
      kind,
      words,
      index,
      tone: STEP_TONES[kind],
      hollow: state > 0,
      fault: faulty.has(index),
      label: words.replace(/^step \d+: /, ""),
      short: OPERATION.exec(words)[1],
    }));
    this.end = this.steps.reduce((most, { end }) => Math.max(most, end), 1);
    const wrong = model.faults.flatMap((fault) =>
      fault.waits.filter((pair) => pair?.length === 2 && pair[0] !== pair[1]),
    );
    const races = model.faults
      .filter(({ property, faulty: steps }) => property === "race_free" && steps.length === 2)
      .map(({ faulty: steps }) => steps);
    // Who waits for whom: `ends` are the earlier and the later step.
    this.waits = [
      ...model.waits.map((ends) => ({ ends, fault: false })),
      ...[...wrong, ...races].map((ends) => ({ ends, fault: true })),
    ];
    this.folded = new Set(); // ranks whose blocks are not shown one by one
    this.build();
  }

  /** Rows with a heading for each rank, and where steps and waits stand in them. */
  layOut() {
    const rows = [];
    const rowOfBlock = [];
    const headings = new Map(); // rank -> its row
    model.rows.forEach(({ rank, block }, index) => {
      if (!headings.has(rank)) {
        headings.set(rank, rows.length);
        rows.push(this.headingOf(rank));
      }
      if (this.folded.has(rank)) rowOfBlock[index] = headings.get(rank);
      else {
        rowOfBlock[index] = rows.length;
        rows.push({ name: block });
      }
    });
    for (const step of this.steps) step.row = rowOfBlock[step.block];

    const bars = this.steps.filter((step) => !this.folded.has(this.rankOf(step)));
    for (const rank of this.folded) bars.push(...this.busy(rank, headings.get(rank)));
    const arrows = this.waits
      .map((wait) => this.arrow(wait))
      .filter(({ from, to, fault }) => fault || from[0] !== to[0]);
    return { rows, bars, arrows, end: this.end };
  }

  rankOf({ block }) {
    return model.rows[block].rank;
  }

  headingOf(rank) {
    const blocks = model.rows.filter((row) => row.rank === rank).length;
    const steps = this.steps.filter((step) => this.rankOf(step) === rank).length;
    return {
      name: `${this.folded.has(rank) ? "▸" : "▾"} rank ${rank}`,
      note: `${plural(blocks, "thread block")}, ${plural(steps, "step")}`,
      heading: true,
      rank,
    };
  }

  arrow({ ends: [one, other], fault }) {
    const [before, after] = [this.steps[one], this.steps[other]];
    if (!fault) return { from: [before.row, before.end], to: [after.row, after.begin], tone: "faint" };
    return {
      from: [before.row, (before.begin + before.end) / 2],
      to: [after.row, (after.begin + after.end) / 2],
      fault: true,
      bow: 34,
    };
  }

  /** One bar for each stretch in which any block of a folded rank does something. */
  busy(rank, row) {
    const stretches = [];
    const steps = this.steps
      .filter((step) => this.rankOf(step) === rank)
      .sort((a, b) => a.begin - b.begin);
    for (const { begin, end, fault } of steps) {
      const last = stretches.at(-1);
      if (last && begin <= last.end) {
        last.end = Math.max(last.end, end);
        last.fault ||= fault;
      } else stretches.push({ row, rank, begin, end, fault, tone: "strong", isFolded: true });
    }
    return stretches;
  }

  fold(ranks) {
    this.folded = new Set(ranks);
    this.timeline.set(this.layOut());
    this.timeline.show(this.player.position);
    this.foldButton.textContent = this.folded.size ? "Open all ranks" : "Fold all ranks";
  }

  toggle(rank) {
    const ranks = new Set(this.folded);
    if (!ranks.delete(rank)) ranks.add(rank);
    this.fold(ranks);
  }

  tell(bar) {
    if (bar.isFolded) return `rank ${bar.rank}, turns ${bar.begin} to ${bar.end}\nclick to open it`;
    return [
      `${this.placeOf(bar)}, ${bar.words}`,
      model.words.operations[bar.short] ?? STEP_WORDS[bar.kind],
      STATES[bar.state],
    ]
      .filter(Boolean)
      .join("\n");
  }

  placeOf({ block }) {
    return `rank ${model.rows[block].rank} ${model.rows[block].block}`;
  }

  build() {
    const jump = (fault, line) => {
      const step = (line >= 0 && fault.waits[line]?.[0]) ?? fault.faulty[0];
      const bar = this.steps[step === false ? fault.faulty[0] : step];
      if (bar) {
        if (this.folded.has(this.rankOf(bar))) this.toggle(this.rankOf(bar));
        this.choose(bar);
        this.player.go(bar.end);
        this.timeline.element.scrollTop = this.timeline.y(bar.row) - 200;
      }
      document
        .getElementById("timeline")
        .scrollIntoView({ behavior: still.matches ? "auto" : "smooth", block: "center" });
    };
    buildHead({ jump: model.faults.some(({ faulty }) => faulty.length) ? jump : null });
    this.timeline = new Timeline("Steps of all blocks", {
      ...this.layOut(),
      unit: "turn",
      whole: true,
      left: 88,
      row: 26,
      tell: (bar) => this.tell(bar),
      pick: (bar, row) => {
        const { heading, rank } = this.timeline.rows[row] ?? {};
        if (heading) this.toggle(rank);
        else this.choose(bar);
      },
    });
    const kinds = new Set(this.steps.map(({ kind }) => kind));
    const entries = STEP_WORDS.map((words, kind) => [STEP_TONES[kind], words]).filter((_, kind) =>
      kinds.has(kind),
    );
    if (model.faults.length)
      entries.push(
        ["fault", "what the counterexample names", "box"],
        ["fault", "who waits for whom there", "line"],
      );
    if (this.steps.some(({ hollow }) => hollow))
      entries.push(["faint", "never happens", "dashed-box"]);
    if (this.waits.some(({ fault }) => !fault))
      entries.push(["faint", "a message or a flag, to the step that waits for it", "line"]);
    const main = panel(
      "Blocks",
      "each step as early as it can be, each message takes one turn; a click on a rank folds it",
      [this.timeline.element, legend(entries)],
      { id: "timeline" },
    );
    this.foldButton = el(
      "button",
      {
        type: "button",
        class: "link",
        id: "fold",
        onclick: () =>
          this.fold(this.folded.size ? [] : new Set(model.rows.map(({ rank }) => rank))),
      },
      "Fold all ranks",
    );
    main.element.firstChild.append(
      el("span", { class: "spacer" }),
      this.foldButton,
      zoomButtons((times) => this.timeline.rescale(times)),
    );
    this.about = panel(
      "Step",
      "click one",
      el("ul", { class: "columns", style: { "grid-template-columns": "1fr" } }),
      { id: "step" },
    );
    document
      .getElementById("stage")
      .replaceChildren(main.element, this.about.element, this.wordsPanel());
    this.player = new Player({
      length: this.end,
      word: "turn",
      describe: (position) => this.describe(position),
      change: (position) => this.timeline.show(position),
      faults: [
        ...new Set(
          model.faults.flatMap((fault) => fault.faulty.map((step) => this.steps[step].end)),
        ),
      ].sort((a, b) => a - b),
      keys: { "+": () => this.timeline.rescale(1.5), "-": () => this.timeline.rescale(1 / 1.5) },
    });
    this.player.begin(this.end);
  }

  /** What the names and letters in the steps mean. */
  wordsPanel() {
    const words = [...Object.entries(model.words.operations), ...model.words.notation];
    return panel(
      "What the steps say",
      "every operation and every buffer that occurs above",
      el(
        "dl",
        { class: "words" },
        words.flatMap(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)]),
      ),
      { id: "words" },
    ).element;
  }

  /** Say in words what a step waits for, and what waits for it. */
  choose(bar) {
    const lines = !bar
      ? []
      : [
          ["waits for", 1, 0],
          ["is awaited by", 0, 1],
        ].flatMap(([word, mine, other]) =>
          this.waits
            .filter(({ ends }) => ends[mine] === bar.index)
            .map(({ ends, fault }) => {
              const step = this.steps[ends[other]];
              return `${word} ${this.placeOf(step)} ${step.words}${fault ? " (in the counterexample)" : ""}`;
            }),
        );
    this.about.note.textContent = bar
      ? `${this.placeOf(bar)} ${bar.words}${bar.state ? `: ${STATES[bar.state]}` : ""}`
      : "click one";
    this.about.element
      .querySelector("ul")
      .replaceChildren(
        ...lines.map((line) => el("li", { style: { "white-space": "normal" } }, line)),
      );
  }

  describe(position) {
    const done = this.steps.filter(({ end, state }) => !state && end <= position).length;
    const never = this.steps.filter(({ state }) => state).length;
    const all = `${this.steps.length.toLocaleString("en")} steps shown`;
    return [
      `Turn ${position} of ${this.end}`,
      `${done.toLocaleString("en")} of ${all} done${never ? `, ${never} never happen` : ""}`,
    ];
  }
}

function start() {
  const view = new BlocksView();
  window.viewer = { model, player: view.player, view, frames: () => frames };
}
