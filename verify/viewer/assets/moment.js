// What the pictures of a collective (and of flows) ask about a moment: who is absent, what is
// carried, how much of its work a rank has, what a cell contains.

class Moment {
  constructor() {
    this.flows = model.family === "flows";
    this.holdings = this.flows ? new Volumes(model) : new Holdings(model);
    this.late = new Set(model.late);
    // Of flows the file does not say what a rank can do: the most of an epoch stands for it.
    const most = Math.max(1, ...model.rounds.map((flat) => flat.length >> 2));
    this.ports = this.flows
      ? most
      : model.ranks * (typeof model.ports === "number" ? model.ports : 1);
    this.word = this.flows ? "epoch" : "round";
    this.position = 0;
    this.followed = null;
    this.changed = new Set();
    this.starts = [];
    let begin = 0;
    for (const phase of model.phases) {
      this.starts.push(begin);
      begin += phase.rounds;
    }
    this.absences = model.phases.map(({ absent }) => new Set(absent));
    this.wrong = new Set(
      model.faults
        .filter(({ rank, chunk }) => Number.isInteger(rank) && Number.isInteger(chunk))
        .map(({ rank, chunk }) => `${rank},${chunk}`),
    ); // what ends wrong
    this.faulty = new Set(
      model.faults.flatMap((fault) => (fault.faulty ?? []).map((way) => way.join())),
    );
  }

  phaseAt(round) {
    let phase = 0;
    while (phase + 1 < this.starts.length && this.starts[phase + 1] <= round) phase += 1;
    return phase;
  }

  absentAt(round) {
    return this.absences[this.phaseAt(round)] ?? new Set();
  }

  roundName(round) {
    const phase = this.phaseAt(round),
      { name } = model.phases[phase]; // counted from 0, as verify does
    return this.flows
      ? `epoch ${round}`
      : `${name.replaceAll("_", " ")} round ${round - this.starts[phase]}`;
  }

  nameOf(rank) {
    return model.names?.[rank] ?? `${rank}`;
  }

  chunkName(chunk) {
    return model.columns?.[chunk]?.name ?? `${chunk}`;
  }

  toneOf(round, i) {
    return TONES[this.holdings.payload[round][i]];
  }

  shareOf(round, i) {
    return this.holdings.share[round][i] / model.ranks;
  }

  opOf(round, i) {
    return this.flows ? "a copy" : model.rounds[round][4 * i + 3] ? "reduce" : "copy";
  }

  carried(round, i) {
    if (this.flows) return `${shown(model.rounds[round][4 * i + 3])} of it`;
    const count = this.holdings.share[round][i];
    if (this.toneOf(round, i) === "fault") return "some contribution more than once";
    return count === model.ranks ? "all contributions" : plural(count, "contribution");
  }

  isFaulty(round, src, dst, chunk) {
    return this.faulty.has(`${round},${src},${dst},${chunk}`);
  }

  /** How much of its work a rank has: shares that are complete, and that are partly there. */
  progressOf(rank) {
    const { holdings, followed } = this;
    if (followed !== null) {
      const cell = rank * holdings.width + followed - holdings.low,
        tone = TONES[holdings.tone[cell]];
      const part = this.flows ? holdings.part(rank, followed) : holdings.number[cell] / model.ranks;
      return tone === "whole"
        ? { whole: 1, partial: 0, tone }
        : { whole: 0, partial: part, tone: tone === "none" ? "strong" : tone };
    }
    const all = this.flows ? holdings.wants[rank] || 1 : holdings.width;
    const whole = holdings.whole[rank] / all;
    const held = this.flows ? holdings.held[rank] / all : holdings.held[rank] / (model.ranks * all);
    return {
      whole,
      partial: Math.max(0, held - whole),
      tone: this.late.has(rank) ? "late" : "helper",
    };
  }

  /** The contributions in a cell: a bar for each where there is room, else how many. */
  drawContent(ctx, rank, chunk, x, y, width, height) {
    const { holdings } = this,
      { ranks } = model,
      each = width / ranks;
    if (this.flows) {
      ctx.fillStyle = tones.helper;
      const part = height * holdings.part(rank, chunk);
      return ctx.fillRect(x, y + height - part, width, part);
    }
    if (each >= 1.5 && ranks <= 40) {
      for (let r = 0; r < ranks; r++) {
        const count = holdings.count(rank, chunk, r);
        if (!count) continue;
        ctx.fillStyle = tones[count > 1 ? "fault" : this.late.has(r) ? "late" : "helper"];
        ctx.fillRect(x + r * each, y, Math.max(1, each - (each > 3 ? 0.75 : 0)), height);
      }
      return;
    }
    const cell = rank * holdings.width + chunk - holdings.low,
      tone = TONES[holdings.tone[cell]];
    const part = Math.max(1.5, (height * holdings.number[cell]) / ranks);
    ctx.fillStyle = tones[tone === "fault" ? "fault" : tone];
    ctx.fillRect(x, y + height - part, width, part);
  }

  tellRank(rank) {
    const { holdings } = this,
      wanted = this.flows ? holdings.wants[rank] : holdings.width;
    const absent = this.absentAt(Math.max(0, this.position - 1)).has(rank);
    return [
      `rank ${this.nameOf(rank)}${this.late.has(rank) ? ", may be late" : ""}${absent ? ", absent from this phase" : ""}`,
      `${holdings.whole[rank]} of ${plural(wanted, "chunk")} complete`,
      this.followed === null
        ? ""
        : `chunk ${this.chunkName(this.followed)}: ${holdings.describe(rank, this.followed)}`,
    ]
      .filter(Boolean)
      .join("\n");
  }
}
