// Ranks by rounds: each cell is what a rank sends (above) and receives (below) in a round.

const LEFT = 58,
  BAND = 54; // room for the ranks' names, and for phases and ports above

class Rounds {
  constructor(view) {
    this.view = view;
    this.zoom = 1;
    this.surface = new Surface("Ranks by rounds: above what a rank sends, below what it receives", {
      draw: (ctx, seen) => this.draw(ctx, seen),
      tell: (x, y) => this.tell(x, y),
      click: (x, y) => this.click(x, y),
      most: 800,
    });
    this.element = this.surface.element;
    this.surface.fitted = () => this.fit();
    this.index = this.indexed();
  }

  /** Per round and rank the transfers that it sends and receives. */
  indexed() {
    return model.rounds.map((flat) => {
      const sends = new Map(),
        receives = new Map();
      for (let i = 0; 4 * i < flat.length; i++) {
        for (const [of, rank] of [
          [sends, flat[4 * i]],
          [receives, flat[4 * i + 1]],
        ]) {
          if (!of.has(rank)) of.set(rank, []);
          of.get(rank).push(i);
        }
      }
      return { sends, receives };
    });
  }

  fit() {
    const rounds = model.rounds.length,
      room = this.surface.room - LEFT - 2;
    this.column = clamp(room / Math.max(1, rounds), model.ranks > 24 ? 9 : 22, 110) * this.zoom;
    this.row = clamp(Math.floor(540 / model.ranks), 11, 34);
    this.surface.size(
      LEFT + Math.max(room, rounds * this.column),
      BAND + model.ranks * this.row + 6,
    );
  }

  scale(times) {
    this.zoom = clamp(this.zoom * times, 0.25, 6);
    this.surface.fit();
    this.surface.reveal(this.x(this.view.position - 1));
  }

  x(round) {
    return LEFT + round * this.column;
  }

  draw(ctx, seen) {
    const { view, column, row } = this,
      count = model.rounds.length;
    const first = clamp(Math.floor(seen.x / column) - 1, 0, count),
      last = clamp(Math.ceil((seen.x + seen.width - LEFT) / column), 0, count);
    const top = clamp(Math.floor((seen.y - BAND) / row), 0, model.ranks),
      bottom = clamp(Math.ceil((seen.y + seen.height - BAND) / row), 0, model.ranks);
    if (view.position > 0) {
      ctx.fillStyle = tones.accent;
      ctx.globalAlpha = 0.11;
      ctx.fillRect(this.x(view.position - 1), BAND - 4, column, model.ranks * row + 8);
      ctx.globalAlpha = 1;
    }
    this.absences(ctx, first, last, top, bottom);
    for (let round = first; round < last; round++) {
      for (let rank = top; rank < bottom; rank++) {
        const y = BAND + rank * row,
          half = (row - 3) / 2;
        this.cell(
          ctx,
          round,
          this.index[round].sends.get(rank),
          this.x(round) + 1,
          y + 1,
          column - 2,
          half,
        );
        this.cell(
          ctx,
          round,
          this.index[round].receives.get(rank),
          this.x(round) + 1,
          y + 1.5 + half,
          column - 2,
          half,
        );
      }
    }
    this.faults(ctx);
    this.band(ctx, seen, first, last);
    this.names(ctx, seen, top, bottom);
  }

  cell(ctx, round, transfers, x, y, width, height) {
    const { view } = this;
    if (!transfers) {
      ctx.fillStyle = tones.strong;
      ctx.globalAlpha = 0.5;
      ctx.fillRect(x + width / 2 - 1, y + height / 2 - 0.5, 2, 1);
      ctx.globalAlpha = 1;
      return;
    }
    const part = width / transfers.length;
    transfers.forEach((i, index) => {
      const chunk = model.rounds[round][4 * i + 2],
        other = view.followed !== null && view.followed !== chunk;
      const tone = view.toneOf(round, i),
        full = tone === "helper" ? 0.45 + 0.55 * view.shareOf(round, i) : 1;
      ctx.globalAlpha = (other ? 0.1 : 1) * (round < view.position ? 1 : 0.42) * full;
      ctx.fillStyle = tones[tone];
      ctx.beginPath();
      ctx.roundRect(
        x + index * part,
        y,
        Math.max(1, part - (transfers.length > 1 ? 1 : 0)),
        height,
        Math.min(2.5, height / 3),
      );
      ctx.fill();
      const label = view.chunkName(chunk);
      if (height >= 10.5 && part >= 5 + 6 * label.length && !other) {
        ctx.globalAlpha = round < view.position ? 1 : 0.75;
        text(ctx, label, x + index * part + part / 2, y + height / 2 + 0.5, {
          align: "center",
          size: Math.min(10.5, height - 1.5),
          tone: full <= 0.75 || round >= view.position ? "ink" : readableOn(tone),
          mono: true,
        });
      }
    });
    ctx.globalAlpha = 1;
  }

  absences(ctx, first, last, top, bottom) {
    let begin = 0;
    for (const { absent, rounds } of model.phases) {
      const from = Math.max(begin, first),
        to = Math.min(begin + rounds, last);
      for (const rank of to > from ? absent : []) {
        if (rank >= top && rank < bottom)
          hatch(
            ctx,
            this.x(from),
            BAND + rank * this.row + 1,
            (to - from) * this.column,
            this.row - 2,
          );
      }
      begin += rounds;
    }
  }

  /** Outlines of the transfers that matter to the counterexamples. */
  faults(ctx) {
    for (const [ways, width] of [
      ["transfers", 1],
      ["faulty", 2.5],
    ]) {
      for (const fault of model.faults) {
        for (const [round, src, dst] of fault[ways] ?? []) {
          const half = (this.row - 2) / 2;
          ctx.strokeStyle = tones.fault;
          ctx.lineWidth = width;
          ctx.globalAlpha = width > 1 ? 1 : 0.75;
          ctx.strokeRect(this.x(round), BAND + src * this.row + 0.5, this.column, half);
          ctx.strokeRect(this.x(round), BAND + dst * this.row + half + 1, this.column, half);
        }
      }
    }
    ctx.globalAlpha = 1;
  }

  band(ctx, seen, first, last) {
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, seen.width, BAND - 3);
    const most = this.view.ports,
      y = seen.y + 35;
    for (let round = first; round < last; round++) {
      const height = (12 * (model.load?.[round] ?? model.rounds[round].length >> 2)) / most;
      ctx.fillStyle = tones.soft;
      ctx.globalAlpha = round < this.view.position ? 0.75 : 0.35;
      ctx.fillRect(this.x(round) + 1, y + 12 - height, this.column - 2, height);
      ctx.globalAlpha = 1;
    }
    const every = Math.ceil(26 / this.column);
    let begin = 0;
    for (const { name, rounds } of model.phases) {
      const from = this.x(begin),
        to = this.x(begin + rounds),
        left = Math.max(from, seen.x + LEFT);
      if (rounds && to > seen.x && from < seen.x + seen.width) {
        ctx.fillStyle = tones.strong;
        ctx.fillRect(from, seen.y, 1, BAND - 8);
        ctx.save();
        ctx.beginPath();
        ctx.rect(left, seen.y, Math.max(0, to - left - 4), 20);
        ctx.clip();
        text(
          ctx,
          this.view.flows
            ? plural(rounds, "epoch")
            : `${name.replaceAll("_", " ")} · ${plural(rounds, "round")}`,
          left + 6,
          seen.y + 9,
          { tone: "ink", weight: 600, size: 11.5 },
        );
        ctx.restore();
      }
      for (let round = Math.max(begin, first); round < Math.min(begin + rounds, last); round++) {
        const current = round === this.view.position - 1;
        if (
          current ||
          ((round - begin) % every === 0 && Math.abs(round - this.view.position + 1) >= every)
        )
          text(ctx, `${round - begin}`, this.x(round) + this.column / 2, seen.y + 26, {
            align: "center",
            tone: current ? "accent" : "faint",
            weight: current ? 700 : 400,
            size: 10,
          });
      }
      begin += rounds;
    }
  }

  names(ctx, seen, top, bottom) {
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, LEFT - 2, seen.height);
    text(ctx, this.view.flows ? "flows" : "ports", seen.x + LEFT - 10, seen.y + 41, {
      align: "right",
      tone: "faint",
      size: 10,
    });
    const every = Math.ceil(11 / this.row);
    for (let rank = top; rank < bottom; rank += every) {
      const y = BAND + rank * this.row + this.row / 2,
        late = this.view.late.has(rank);
      if (y < seen.y + BAND - 2) continue;
      text(
        ctx,
        this.row >= 18 ? `rank ${this.view.nameOf(rank)}` : this.view.nameOf(rank),
        seen.x + LEFT - 10,
        y + 0.5,
        {
          align: "right",
          tone: late ? "latename" : "soft",
          weight: late ? 700 : 400,
          size: Math.min(11.5, this.row - 1),
        },
      );
    }
  }

  at(x, y) {
    const round = Math.floor((x - LEFT) / this.column),
      rank = Math.floor((y - BAND) / this.row);
    return round >= 0 && round < model.rounds.length && rank < model.ranks ? { round, rank } : null;
  }

  tell(x, y) {
    const here = this.at(x, y);
    if (!here) return "";
    const { round, rank } = here,
      name = this.view.roundName(round);
    if (rank < 0) return `${name}: ${plural(model.rounds[round].length >> 2, "transfer")}`;
    const lines = [
      ["sends", "sends", 1, "to"],
      ["receives", "receives", 0, "from"],
    ].flatMap(([key, word, end, preposition]) =>
      (this.index[round][key].get(rank) ?? []).map(
        (i) =>
          `${word} chunk ${this.view.chunkName(model.rounds[round][4 * i + 2])} ${preposition} ${this.view.nameOf(model.rounds[round][4 * i + end])} (${this.view.opOf(round, i)}, ${this.view.carried(round, i)})`,
      ),
    );
    const absent = this.view.absentAt(round).has(rank);
    return [
      `rank ${this.view.nameOf(rank)}, ${name}`,
      ...(lines.length ? lines : [absent ? "absent" : "idle"]),
    ].join("\n");
  }

  click(x, y) {
    const here = this.at(x, y);
    if (!here) return;
    this.view.player.pause();
    this.view.player.go(here.round + 1);
  }
}
