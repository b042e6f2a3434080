// The page of a program of thread blocks: its steps in one run, with the wait cycle or the race.

const STEP_TONES = ["faint", "weight", "forward", "input", "fused"];
const STEP_WORDS = [
  "waits or signals",
  "computes or copies",
  "sends",
  "receives",
  "receives and sends",
];
const STATES = ["", "stands here and waits for ever", "is never reached"];

class BlocksView {
  constructor() {
    const faulty = new Set(model.faults.flatMap((fault) => fault.faulty));
    this.bars = model.steps.map(([row, begin, end, state, kind, words], index) => ({
      row,
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
    }));
    this.end = Math.max(1, ...this.bars.map(({ end }) => end));
    const middle = (index) => [
      this.bars[index].row,
      (this.bars[index].begin + this.bars[index].end) / 2,
    ];
    const wrong = model.faults.flatMap((fault) =>
      fault.waits.filter((pair) => pair?.length === 2 && pair[0] !== pair[1]),
    );
    const races = model.faults
      .filter(({ property, faulty: steps }) => property === "race_free" && steps.length === 2)
      .map(({ faulty: steps }) => steps);
    this.arrows = [
      ...model.waits.map(([one, other]) => ({
        from: [this.bars[one].row, this.bars[one].end],
        to: [this.bars[other].row, this.bars[other].begin],
        tone: "faint",
        ends: [one, other],
      })),
      ...[...wrong, ...races].map(([one, other]) => ({
        from: middle(one),
        to: middle(other),
        fault: true,
        bow: 34,
        ends: [one, other],
      })),
    ];
    this.build();
  }

  build() {
    const jump = (fault, line) => {
      const step = (line >= 0 && fault.waits[line]?.[0]) ?? fault.faulty[0];
      const bar = this.bars[step === false ? fault.faulty[0] : step];
      if (bar) {
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
      rows: model.rows.map((name) => ({ name })),
      bars: this.bars,
      arrows: this.arrows,
      end: this.end,
      unit: "turn",
      whole: true,
      left: 104,
      row: 26,
      tell: (bar) =>
        [
          `${model.rows[bar.row].replace("·", "")}, ${bar.words}`,
          STEP_WORDS[bar.kind],
          STATES[bar.state],
        ]
          .filter(Boolean)
          .join("\n"),
      pick: (bar) => this.choose(bar),
    });
    const kinds = new Set(this.bars.map(({ kind }) => kind));
    const entries = STEP_WORDS.map((words, kind) => [STEP_TONES[kind], words]).filter((_, kind) =>
      kinds.has(kind),
    );
    if (model.faults.length)
      entries.push(["fault", "what the counterexample names, and who waits for whom", "line"]);
    if (this.bars.some(({ hollow }) => hollow))
      entries.push(["faint", "never happens", "dashed-box"]);
    const main = panel(
      "Blocks",
      "each step as early as it can be; thin lines are messages and flags",
      [this.timeline.element, legend(entries)],
      { id: "timeline" },
    );
    main.element.firstChild.append(
      el("span", { class: "spacer" }),
      zoomButtons((times) => this.timeline.rescale(times)),
    );
    this.about = panel(
      "Step",
      "click one",
      el("ul", { class: "columns", style: { "grid-template-columns": "1fr" } }),
      { id: "step" },
    );
    document.getElementById("stage").replaceChildren(main.element, this.about.element);
    this.player = new Player({
      length: this.end,
      word: "turn",
      describe: (position) => this.describe(position),
      change: (position) => this.timeline.show(position),
      faults: [
        ...new Set(
          model.faults.flatMap((fault) => fault.faulty.map((step) => this.bars[step].end)),
        ),
      ].sort((a, b) => a - b),
      keys: { "+": () => this.timeline.rescale(1.5), "-": () => this.timeline.rescale(1 / 1.5) },
    });
    this.player.begin(this.end);
  }

  /** Say in words what a step waits for, and what waits for it. */
  choose(bar) {
    const lines = !bar
      ? []
      : [
          ["waits for", 1, 0],
          ["is awaited by", 0, 1],
        ].flatMap(([word, mine, other]) =>
          this.arrows
            .filter(({ ends }) => ends[mine] === bar.index)
            .map(
              ({ ends, fault }) =>
                `${word} ${model.rows[this.bars[ends[other]].row].replace(" ·", ",")} ${this.bars[ends[other]].words}${fault ? " (in the counterexample)" : ""}`,
            ),
        );
    this.about.note.textContent = bar
      ? `${model.rows[bar.row].replace(" ·", ",")} ${bar.words}${bar.state ? `: ${STATES[bar.state]}` : ""}`
      : "click one";
    this.about.element
      .querySelector("ul")
      .replaceChildren(
        ...lines.map((line) => el("li", { style: { "white-space": "normal" } }, line)),
      );
  }

  describe(position) {
    const done = this.bars.filter(({ end, state }) => !state && end <= position).length;
    const never = this.bars.filter(({ state }) => state).length;
    return [
      `Turn ${position} of ${this.end}`,
      `${done.toLocaleString("en")} of ${this.bars.length.toLocaleString("en")} steps done${never ? `, ${never} never happen` : ""}`,
    ];
  }
}

function start() {
  const view = new BlocksView();
  window.viewer = { model, player: view.player, view, frames: () => frames };
}
