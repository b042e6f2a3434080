// The page of a collective (and of flows): ring, rounds by ranks, holdings, transfers in words.

class CollectiveView extends Moment {
  constructor() {
    super();
    this.ring = new Ring(this);
    this.matrix = new Rounds(this);
    this.held = new Held(this);
    this.build();
  }

  build() {
    const jump = (fault, line) => {
      const way = line >= 0 ? fault.transfers?.[line] : fault.faulty?.[0];
      this.follow(way ? way[3] : (fault.chunk ?? null));
      this.player.pause();
      this.player.go(way ? way[0] + 1 : model.rounds.length); // else: who lacks it at the end
      document
        .getElementById("rounds")
        .scrollIntoView({ behavior: still.matches ? "auto" : "smooth", block: "center" });
    };
    buildHead({ jump });
    const lateWords = this.late.size ? [["late", "with a late rank's contribution"]] : [];
    const contents = this.flows
      ? [
          ["helper", "part of a chunk"],
          ["whole", "all of a chunk that is wanted here"],
        ]
      : [
          ["helper", this.late.size ? "helpers' contributions" : "contributions"],
          ...lateWords,
          ["whole", "complete: all contributions, once"],
          ...(model.verdict === "refuted" ? [["fault", "counted twice, or the fault"]] : []),
        ];
    const ring = panel("Ranks", "", [this.ring.element, legend(contents)], { id: "ring" });
    ring.element.classList.add("stays");
    const title = this.flows ? "Epochs by ranks" : "Rounds by ranks";
    const rounds = panel(
      title,
      "above what it sends, below what it receives; colour: what is in it",
      this.matrix.element,
      { id: "rounds" },
    );
    rounds.element.firstChild.append(
      el("span", { class: "spacer" }),
      zoomButtons((times) => this.matrix.scale(times)),
    );
    this.heldPanel = panel("Who holds what", "", this.held.element, { id: "held" });
    this.list = el("ul", { class: "columns", tabindex: "0", "aria-label": "Transfers" });
    this.chooser = el("input", {
      type: "number",
      id: "follow",
      min: this.holdings.low,
      max: this.holdings.high - 1,
      placeholder: "all",
      style: { width: "78px" },
      oninput: () =>
        this.follow(
          this.chooser.value === ""
            ? null
            : clamp(+this.chooser.value, this.holdings.low, this.holdings.high - 1),
        ),
    });
    this.listPanel = panel("Transfers", "", this.list, { id: "transfers" });
    this.listPanel.element.firstChild.append(
      el("span", { class: "spacer" }),
      el("label", { class: "note" }, "follow chunk ", this.chooser),
    );
    const stage = document.getElementById("stage");
    stage.className = "split";
    stage.replaceChildren(
      el("div", { class: "stack" }, ring.element, this.listPanel.element),
      el("div", { class: "stack" }, rounds.element, this.heldPanel.element),
    );
    this.player = new Player({
      length: model.rounds.length,
      word: this.word,
      segments: model.phases.map(({ name, rounds: length }) => ({
        name: name.replaceAll("_", " "),
        length,
      })),
      describe: (position) => this.describe(position),
      change: (position) => this.change(position),
      move: (progress) => {
        this.ring.progress = progress;
        this.ring.surface.ask();
      },
      faults: [
        ...new Set(
          model.faults.flatMap((fault) => (fault.faulty ?? []).map(([round]) => round + 1)),
        ),
      ].sort((a, b) => a - b),
      keys: {
        Escape: () => this.follow(null),
        "+": () => this.matrix.scale(1.5),
        "-": () => this.matrix.scale(1 / 1.5),
      },
    });
    const first = model.faults.find(({ faulty }) => faulty.length);
    const lacking = model.meaningful && this.wrong.size ? model.rounds.length : 0;
    this.player.begin(first ? first.faulty[0][0] + 1 : lacking);
  }

  describe(position) {
    this.holdings.go(position);
    const complete = this.holdings.complete,
      all = model.ranks;
    const state = !model.meaningful
      ? "not well formed: who holds what has no meaning"
      : `${complete === all ? `all ${all}` : `${complete} of ${all}`} ranks complete${model.cut ? " in these chunks" : ""}`;
    if (!position) return ["Start", state];
    const transfers = model.rounds[position - 1].length >> 2;
    return [
      this.roundName(position - 1).replace(/^./, (c) => c.toUpperCase()),
      `${this.flows ? plural(transfers, "flow") : `${plural(transfers, "transfer")}${model.cut ? " shown" : ""}, ${2 * model.load[position - 1]} of ${2 * this.ports} ports`} · ${state}`,
    ];
  }

  change(position) {
    this.position = position;
    const flat = position ? model.rounds[position - 1] : [];
    this.changed = new Set();
    for (let i = 0; i < flat.length; i += 4)
      this.changed.add(flat[i + 1] * this.holdings.width + flat[i + 2] - this.holdings.low);
    if (this.player?.progress !== 0) this.ring.progress = 1;
    this.matrix.surface.reveal(this.matrix.x(position - 1));
    this.heldPanel.note.textContent = model.meaningful
      ? this.heldNote()
      : "the schedule is not well formed, so this has no meaning";
    this.redraw();
    this.write();
  }

  heldNote() {
    const whole = this.holdings.whole.reduce((sum, count) => sum + count, 0);
    const all = this.flows
      ? this.holdings.wants.reduce((sum, count) => sum + count, 0)
      : model.ranks * this.holdings.width;
    return `${whole.toLocaleString("en")} of ${all.toLocaleString("en")} complete; click a chunk to follow it`;
  }

  redraw() {
    for (const { surface } of [this.ring, this.matrix, this.held]) surface.ask();
  }

  follow(chunk) {
    const { low, high } = this.holdings;
    this.followed = chunk !== null && chunk >= low && chunk < high ? chunk : null;
    this.chooser.value = this.followed ?? "";
    this.redraw();
    this.write();
  }

  /** The transfers in words: of this round, or of the followed chunk. */
  write() {
    const rows = [],
      most = 400;
    const row = (round, i, words) => {
      const tone = this.isFaulty(round, ...model.rounds[round].slice(4 * i, 4 * i + 3))
        ? "fault"
        : this.toneOf(round, i);
      const body = [el("i", { style: { "--tone": `var(--${tone})` } }), words];
      return el(
        "li",
        { title: `${this.opOf(round, i)}: ${this.carried(round, i)}` },
        this.followed === null
          ? body
          : el(
              "button",
              {
                type: "button",
                class: "link",
                "aria-current": round === this.position - 1 ? "step" : false,
                style: {
                  "font-weight": round === this.position - 1 ? 700 : 400,
                  opacity: round < this.position ? 1 : 0.55,
                },
                onclick: () => {
                  this.player.pause();
                  this.player.go(round + 1);
                },
              },
              body,
            ),
      );
    };
    const from = this.followed === null ? Math.max(0, this.position - 1) : 0,
      to = this.followed === null ? this.position : model.rounds.length;
    let left = 0;
    for (let round = from; round < to; round++) {
      const flat = model.rounds[round];
      for (let i = 0; 4 * i < flat.length; i++) {
        const [src, dst, chunk] = flat.slice(4 * i, 4 * i + 3);
        if (this.followed !== null && chunk !== this.followed) continue;
        if (rows.length >= most) {
          left += 1;
          continue;
        }
        const arrow = `${this.nameOf(src)} → ${this.nameOf(dst)}`,
          op = this.opOf(round, i) === "reduce" ? "+" : "=";
        rows.push(
          row(
            round,
            i,
            this.followed === null
              ? `${arrow}  chunk ${this.chunkName(chunk)} ${this.flows ? "" : op}`
              : `${this.roundName(round)}: ${arrow} ${this.flows ? "" : op}`,
          ),
        );
      }
    }
    this.list.style.gridTemplateColumns = this.followed === null ? "" : "1fr";
    if (left) rows.push(el("li", {}, `… and ${left} more`));
    this.list.replaceChildren(
      ...(rows.length
        ? rows
        : [el("li", {}, this.position ? "nothing moves" : "before the first round; press space")]),
    );
    this.listPanel.note.textContent =
      this.followed === null
        ? this.flows
          ? "of this epoch"
          : "of this round; + adds, = overwrites"
        : `the way of chunk ${this.chunkName(this.followed)} (esc: all)`;
  }
}

function start() {
  const view = new CollectiveView();
  window.viewer = {
    model,
    player: view.player,
    view,
    holdings: view.holdings,
    frames: () => frames,
  };
}
