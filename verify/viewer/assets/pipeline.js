// The page of a pipeline: its timeline, slack of passes and links, critical path, memory; or, where
// it can't run to its end, the ranks' programs with what is wrong in them.

const KINDS = ["F", "I", "W", "B"],
  KIND_TONES = ["forward", "input", "weight", "fused"];
const KIND_WORDS = ["forward", "backward (input)", "backward (weight)", "backward"];
const MOST_CORNERS = 8; // of a link's curve that are written

class PipelineView {
  constructor() {
    this.measured = Boolean(model.passes);
    this.times = this.measured ? this.readPasses() : this.readPrograms();
    this.build();
  }

  /** Bars of the timeline; the player goes from one beginning or end to the next. */
  readPasses() {
    const [low, high] = model.ranks;
    this.rows = Array.from({ length: high - low }, (_, row) => ({ name: `rank ${low + row}` }));
    this.bars = model.passes.map(
      ([rank, kind, stage, microbatch, begin, end, critical, slack]) => ({
        row: rank - low,
        rank,
        kind,
        stage,
        microbatch,
        begin,
        end,
        critical: critical > 0,
        slack,
        tail: slack,
        tone: KIND_TONES[kind],
        label: `${microbatch}`,
      }),
    );
    this.arrows = model.messages
      .filter(([, , begin, there, , critical]) => there > begin || critical)
      .map(([src, dst, begin, there, kind, critical]) => ({
        from: [src - low, begin],
        to: [dst - low, there],
        tone: kind ? "input" : "forward",
        critical: critical > 0,
      }));
    this.end = model.makespan;
    const ofRow = this.rows.map(() => []);
    for (const bar of this.bars) ofRow[bar.row].push(bar);
    this.memory = ofRow.map((bars) => this.memoryOf(bars));
    this.mostMemory = this.memory.flat().reduce((most, [, held]) => Math.max(most, held), 1);
    return [...new Set([0, ...this.bars.flatMap(({ begin, end }) => [begin, end])])].sort(
      (a, b) => a - b,
    );
  }

  /** [time, activations held from then on]; F takes at its begin, the others give at their end. */
  memoryOf(bars) {
    const events = bars
      .map(({ kind, begin, end }) => [kind ? end : begin, model.halves[kind] / 2])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let held = 0;
    return events.map(([time, more]) => [time, (held += more)]);
  }

  readPrograms() {
    const [low] = model.ranks;
    const places = new Set(
      model.faults.flatMap(({ faulty }) => faulty.map((place) => place.join())),
    );
    this.rows = model.programs.map((_, row) => ({ name: `rank ${low + row}` }));
    this.bars = model.programs.flatMap((program, row) =>
      program.map((action, position) => {
        const kind = KINDS.indexOf(/^\d+([A-Z]+)/.exec(action.replace(/_.*/, ""))?.[1]);
        return {
          row,
          rank: low + row,
          begin: position,
          end: position + 1,
          action,
          position,
          tone: KIND_TONES[kind] ?? "faint",
          label: action.replace(/SEND_/, "↑").replace(/RECV_/, "↓"),
          fault: places.has(`${low + row},${position}`),
        };
      }),
    );
    this.arrows = model.faults.flatMap(({ waits }) =>
      waits.filter(Boolean).map(([[rank, position], [other, awaited]]) => ({
        from: [rank - low, position + 0.5],
        to: [other - low, awaited + 0.5],
        fault: true,
        bow: 34,
      })),
    );
    this.end = Math.max(...model.programs.map((program) => program.length), 1);
    return Array.from({ length: this.end + 1 }, (_, position) => position);
  }

  tell(bar) {
    if (!this.measured) return `rank ${bar.rank}, action ${bar.position}: ${bar.action}`;
    return [
      `${bar.stage}${KINDS[bar.kind]}${bar.microbatch}: ${KIND_WORDS[bar.kind]}`,
      `stage ${bar.stage}, microbatch ${bar.microbatch}, rank ${bar.rank}`,
      `${shown(bar.begin)} to ${shown(bar.end)}`,
      bar.critical ? "on the critical path" : `may end ${shown(bar.slack)} later at no cost`,
    ].join("\n");
  }

  build() {
    const jump = (fault, line) => {
      const place = (line >= 0 && fault.waits[line]?.[0]) || fault.faulty[0];
      if (place) this.player.go(place[1] + 1);
      document
        .getElementById("timeline")
        .scrollIntoView({ behavior: still.matches ? "auto" : "smooth", block: "center" });
    };
    buildHead({
      jump: !this.measured && model.faults.some(({ faulty }) => faulty.length) ? jump : null,
    });
    this.followed = null;
    this.timeline = new Timeline(
      this.measured ? "Passes of all ranks over time" : "The ranks' programs, action by action",
      {
        rows: this.rows,
        bars: this.bars,
        arrows: this.arrows,
        end: this.end,
        unit: this.measured ? "time" : "action",
        whole: !this.measured,
        tell: (bar) => this.tell(bar),
        pick: (bar) => this.follow(bar && bar.microbatch !== this.followed ? bar.microbatch : null),
        lane: this.measured ? (ctx, row, timeline) => this.lane(ctx, row, timeline) : null,
      },
    );
    this.timeline.dimmed = (bar) => this.followed !== null && bar.microbatch !== this.followed;
    const kinds = [...new Set(this.bars.map(({ tone }) => tone))];
    const entries = KIND_TONES.map((tone, kind) => [
      tone,
      `${KINDS[kind]}, ${KIND_WORDS[kind]}`,
    ]).filter(([tone]) => kinds.includes(tone));
    if (this.measured)
      entries.push(["ink", "on the critical path", "box"], ...this.linesInWords());
    else {
      entries.push(["fault", "what the counterexample names", "box"]);
      if (this.arrows.length) entries.push(["fault", "who waits for whom there", "line"]);
    }
    const note = this.measured
      ? "numbers are microbatches: zoom in, or point at a pass; a click follows one"
      : "";
    const main = panel(
      this.measured ? "Timeline" : "Programs",
      note,
      [this.timeline.element, legend(entries)],
      { id: "timeline" },
    );
    main.element.firstChild.append(
      el("span", { class: "spacer" }),
      zoomButtons((times) => this.timeline.rescale(times)),
    );
    document
      .getElementById("stage")
      .replaceChildren(
        main.element,
        ...(this.measured && model.links.length ? [this.links()] : []),
      );
    const starts = this.measured
      ? []
      : [
          ...new Set(
            model.faults.flatMap(({ faulty }) => faulty.map(([, position]) => position + 1)),
          ),
        ].sort((a, b) => a - b);
    this.player = new Player({
      length: this.times.length - 1,
      word: this.measured ? "event" : "action",
      describe: (position) => this.describe(position),
      change: (position) => this.timeline.show(this.times[position]),
      faults: starts,
      keys: {
        Escape: () => this.follow(null),
        "+": () => this.timeline.rescale(1.5),
        "-": () => this.timeline.rescale(1 / 1.5),
      },
    });
    this.player.begin(this.times.length - 1);
  }

  follow(microbatch) {
    this.followed = microbatch ?? null;
    this.timeline.surface.ask();
  }

  /** The lines of the timeline for the legend: those that are drawn. */
  linesInWords() {
    const entries = [];
    if (this.bars.some(({ slack }) => slack > 0))
      entries.push([
        "soft",
        "slack: so much later a pass may end at no cost (drawn up to the next pass)",
        "dashed",
      ]);
    if (this.drawsMemory())
      entries.push([
        "soft",
        model.limits
          ? "activations held, below each rank (full height: its limit)"
          : `activations held, below each rank (full height: ${shown(this.mostMemory)})`,
        "area",
      ]);
    if (this.arrows.length) entries.push(["forward", "a message to another rank", "line"]);
    return entries;
  }

  drawsMemory() {
    return this.timeline.gap >= 7;
  }

  /** Activations held: a step line with its area, in the gap below a row. */
  lane(ctx, row, timeline) {
    if (!this.drawsMemory()) return;
    const steps = this.memory[row];
    const most = model.limits?.[row] || this.mostMemory;
    const room = timeline.gap - 3,
      base = timeline.y(row) + timeline.height + 1 + room;
    const outline = new Path2D();
    let y = base;
    outline.moveTo(timeline.x(0), y);
    for (const [time, held] of steps) {
      outline.lineTo(timeline.x(time), y);
      y = base - room * (held / most);
      outline.lineTo(timeline.x(time), y);
    }
    outline.lineTo(timeline.x(timeline.end), y);
    ctx.strokeStyle = tones.soft;
    ctx.lineWidth = 1;
    ctx.stroke(outline);

    outline.lineTo(timeline.x(timeline.end), base);
    outline.closePath();
    ctx.globalAlpha = 0.2;
    ctx.fillStyle = tones.soft;
    ctx.fill(outline);
    ctx.globalAlpha = 1;
  }

  /** The makespan at each corner of its growth, and how it grows after the last one. */
  growth({ slack, growth, final_slope: slope }) {
    if (slack === null) return "no latency ever costs anything";
    const corners = growth
      .slice(0, MOST_CORNERS)
      .map(([latency, makespan]) => el("span", {}, `${shown(makespan)} at +${shown(latency)}`));
    const beyond =
      growth.length > MOST_CORNERS
        ? `… (${growth.length - MOST_CORNERS} more)`
        : `beyond: +${shown(slope)} for each +1`;
    return el("div", { class: "pairs" }, corners, el("span", {}, beyond));
  }

  /** Slack of each link, and how the makespan grows beyond it. */
  links() {
    const rows = model.links.map((link) =>
      el(
        "tr",
        {},
        el("td", {}, link.name),
        el("td", {}, shown(link.messages)),
        el("td", {}, link.slack === null ? "any" : shown(link.slack)),
        el("td", { class: "text" }, this.growth(link)),
      ),
    );
    const headings = [
      ["link", "between two ranks", false],
      ["messages", "both ways, in a step", false],
      ["slack", "extra latency at no cost, in the file's unit of time", false],
      ["makespan at +extra latency", "both in the file's unit of time; linear in between", true],
    ];
    return panel(
      "Links",
      "how much more latency each takes, if nothing else changes, and what more than that costs",
      el(
        "div",
        { class: "table", tabindex: "0", role: "group", "aria-label": "Links" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              headings.map(([name, unit, isText]) =>
                el("th", { scope: "col", class: isText && "text" }, name, el("small", {}, unit)),
              ),
            ),
          ),
          el("tbody", {}, rows),
        ),
      ),
      { id: "links" },
    ).element;
  }

  describe(position) {
    if (!this.measured)
      return [
        `Action ${position} of ${this.times.length - 1}`,
        "each rank's program in its own order; the columns are no common time",
      ];
    const time = this.times[position],
      busy = this.bars.filter(({ begin, end }) => begin <= time && time < end).length;
    const done = this.bars.filter(({ end }) => end <= time).length;
    return [
      `Time ${shown(time)} of ${shown(model.makespan)}`,
      done === this.bars.length
        ? `all ${plural(done, "pass", "passes")} done`
        : `${busy} of ${plural(this.rows.length, "rank")} busy · ${done.toLocaleString("en")} of ${this.bars.length.toLocaleString("en")} passes done`,
    ];
  }
}

function start() {
  const view = new PipelineView();
  window.viewer = { model, player: view.player, view, frames: () => frames };
}
