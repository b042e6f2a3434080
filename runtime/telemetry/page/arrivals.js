// The page of a run: operations by ranks, one operation's arrivals, and the tables of the summary.

const MEANINGS = [
  ["mean wait", "from the rank's arrival to the last rank's, whether or not the operation waited"],
  ["late", "after the median arrival: median (p50) and 99th percentile"],
  [
    "wasted",
    "what all other ranks together would have waited for this rank alone, had every operation " +
      "waited for all ranks; operations that began without the rank count, too",
  ],
]; // of the columns of the table of ranks

function size(bytes) {
  const power = bytes ? Math.min(4, Math.floor(Math.log2(bytes) / 10)) : 0;
  return `${+(bytes / 1024 ** power).toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

class ArrivalsView extends Operations {
  constructor() {
    super();
    this.build();
  }

  build() {
    buildHead();
    document.querySelector("#head .badge")?.remove();
    for (const line of model.about) {
      document.getElementById("head").append(el("p", { class: "about" }, line));
    }
    if (model.reload) {
      // the page's hash keeps the operation that is looked at
      setTimeout(() => location.reload(), model.reload * 1000);
    }
    const overview = panel(
      "Operations by ranks",
      "",
      [
        this.matrix.element,
        legend([
          ["late", "came after the median rank"],
          ["helper", "waited before it could begin (deeper: longer)"],
          ["whole", "ran by a schedule (mark above)"],
          ["faint", "ran natively (mark above)"],
          ["ink", "taken to be late, so the others began without it", "box"],
        ]),
      ],
      { id: "operations" },
    );
    this.single = panel("This operation", "", el("div"), { id: "operation" });
    const tables = el(
      "div",
      { class: "facts", style: { margin: "0" } },
      model.tables.flatMap((table, block) => this.tables(table, block)),
    );
    document.getElementById("stage").replaceChildren(overview.element, this.single.element, tables);
    const blocks = model.blocks.map((name, block) => ({
      name,
      length: model.operations.filter((operation) => operation.block === block).length,
    }));
    const slow = this.facts
      .map((_, index) => index)
      .sort((a, b) => this.facts[b].alone - this.facts[a].alone)
      .slice(0, 5);
    this.player = new Player({
      length: Math.max(0, model.operations.length - 1),
      word: "operation",
      segments: blocks.length > 1 ? blocks : [],
      describe: (position) => this.describe(position),
      change: (position) => this.change(position),
      faults: [],
      keys: { l: () => this.player.go(slow.find((at) => at > this.position) ?? slow[0]) },
    });
    this.player.begin(slow[0]);
  }

  tables({ lines, ways, reasons }, block) {
    const title = model.blocks.length > 1 ? ` (${model.blocks[block]})` : "";
    const table = (head, rows) =>
      el(
        "div",
        { class: "table", tabindex: "0", role: "group", "aria-label": head[0] },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              head.map((name) => el("th", {}, name)),
            ),
          ),
          el("tbody", {}, rows),
        ),
      );
    const waits = lines.map(([rank, wait, last, p50, p99, wasted]) =>
      el(
        "tr",
        {},
        el("td", {}, `rank ${rank}`),
        el("td", {}, duration(wait)),
        el("td", {}, last === null ? "–" : `${Math.round(last * 100)} %`),
        el("td", {}, duration(p50)),
        el("td", {}, duration(p99)),
        el("td", {}, duration(wasted)),
      ),
    );
    const counted = (list, word) =>
      list.map(([words, count]) =>
        el(
          "tr",
          {},
          el("td", { class: "text" }, words),
          el("td", {}, count.toLocaleString("en")),
          el("td", {}, word),
        ),
      );
    return [
      panel(
        `Who keeps whom waiting${title}`,
        "",
        [
          table(["rank", "mean wait", "was last", "late p50", "late p99", "wasted"], waits),
          ...MEANINGS.map(([word, meaning]) =>
            el("p", { class: "notes" }, el("b", {}, word), ` ${meaning}`),
          ),
        ],
        { id: "ranks" },
      ).element,
      panel(
        `What ran, and why${title}`,
        "",
        [
          table(["ran", "", ""], counted(ways, "operations")),
          table(["because", "", ""], counted(reasons, "times")),
        ],
        { id: "reasons" },
      ).element,
    ];
  }

  describe(position) {
    const operation = model.operations[position],
      { who, alone } = this.facts[position];
    const sure = alone > 2 * operation.uncertainty;
    return [
      `Operation ${operation.number}: ${sure ? `rank ${model.ranks[who]} came last, by ${duration(alone)}` : "no rank was last for sure"}`,
      `ran ${this.ran(operation)}; ${operation.reason}`,
    ];
  }

  change(position) {
    this.position = position;
    this.matrix.reveal(NAMES + position * this.column);
    this.matrix.ask();
    this.operation(model.operations[position], this.facts[position]);
  }

  /** One operation's timeline: for each rank its wait for the decision, then what it ran. */
  operation(operation, { end }) {
    const unit = 1e3,
      bars = [],
      last = Math.max(
        end,
        ...[...operation.decided, ...operation.done].filter((time) => time !== null),
      );
    operation.arrived.forEach((arrived, row) => {
      if (arrived === null) return;
      const decided = operation.decided[row],
        done = operation.done[row];
      if (decided > arrived)
        bars.push({
          row,
          begin: arrived * unit,
          end: decided * unit,
          tone: "helper",
          label: "waits",
          words: `waits ${duration(decided - arrived)} for the decision`,
        });
      if (done !== null)
        bars.push({
          row,
          begin: decided * unit,
          end: done * unit,
          tone: operation.way === model.native ? "faint" : "whole",
          label: operation.way === model.native ? "native" : "schedule",
          words: `runs for ${duration(done - decided)}: ${this.ran(operation)}`,
        });
      else
        bars.push({
          row,
          begin: decided * unit,
          end: last * unit,
          tone: "fault",
          hollow: true,
          label: "not done",
          words: "failed, or was not done",
        });
    });
    const spans = operation.spans.filter(([, , begin, over]) => begin !== null && over !== null);
    const what = {
      rows: model.ranks.map((rank) => ({
        name: `rank ${rank}`,
        tone: operation.late.includes(rank) ? "latename" : undefined,
      })),
      bars,
      marks: [{ at: end * unit, tone: "ink" }],
      end: last * unit,
    };
    this.timeline ??= new Timeline(
      "One operation: when ranks came, knew the decision, and were done",
      {
        ...what,
        unit: "ms",
        tell: (bar) => `rank ${model.ranks[bar.row]}\n${bar.words}`,
        row: 24,
        lane: (ctx, row, timeline) => this.lane(ctx, row, timeline),
      },
    );
    this.detail = { spans, arrived: operation.arrived };
    this.timeline.set(what);
    this.timeline.cursor = Infinity; // all of it is over
    const more = [
      ["helper", "waits for the decision"],
      ...(operation.way === model.native
        ? [["faint", "runs natively"]]
        : [["whole", "runs by a schedule"]]),
      ["ink", "the last arrival", "dashed"],
      ...(spans.length ? [["soft", "rounds, or stages, below the rank", "line"]] : []),
    ];
    this.single.element.lastChild.replaceWith(el("div", {}, this.timeline.element, legend(more)));
    this.single.note.textContent = `${operation.number}: ${size(operation.bytes)}, ${this.describe(this.position)[1]}; clocks within ${duration(operation.uncertainty)}`;
  }

  /** Below a rank's row: rounds or stages. */
  lane(ctx, row, timeline) {
    const y = timeline.y(row),
      { spans, arrived } = this.detail;
    for (const [at, , begin, over, kind] of spans) {
      if (at !== row) continue;
      ctx.fillStyle = tones[kind === 2 ? "fault" : "soft"];
      ctx.fillRect(
        timeline.x(begin * 1e3),
        y + timeline.height + 1,
        Math.max(1, timeline.x(over * 1e3) - timeline.x(begin * 1e3) - 1),
        3,
      );
    }
    if (arrived[row] === null)
      text(ctx, "no record", timeline.x(0) + 6, y + timeline.height / 2, { tone: "faint" });
  }
}

function start() {
  const view = new ArrivalsView();
  window.viewer = { model, player: view.player, view, frames: () => frames };
}
