// Operations by ranks: each cell is how late a rank came to an operation, or how long it waited.

const NAMES = 58; // room for the ranks' names
const ABOVE = 40; // room for numbers and ways

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds >= 1) return `${seconds.toFixed(seconds >= 10 ? 1 : 2)} s`;
  const small = seconds < 1e-3;
  return `${+(seconds * (small ? 1e6 : 1e3)).toPrecision(3)} ${small ? "µs" : "ms"}`;
}

class Operations {
  constructor() {
    this.position = 0;
    this.facts = model.operations.map((operation) => this.figures(operation));
    this.most = this.facts.reduce((most, { late, wait }) => Math.max(most, ...late, ...wait), 1e-9);
    this.matrix = new Surface("Operations by ranks: who came late, who waited", {
      draw: (ctx, seen) => this.draw(ctx, seen),
      tell: (x, y) => this.tell(x, y),
      click: (x, y) => this.click(x, y),
      most: 640,
    });
    this.matrix.fitted = () => {
      const room = this.matrix.room - NAMES - 4,
        count = model.operations.length;
      this.column = clamp(room / Math.max(1, count), 9, 80);
      this.row = clamp(Math.floor(520 / model.ranks.length), 9, 30);
      this.matrix.size(
        NAMES + Math.max(room, count * this.column),
        ABOVE + model.ranks.length * this.row + 6,
      );
    };
  }

  /** Of an operation: per rank how late after the median, how long it waited before it could begin. */
  figures({ arrived, decided, way }) {
    const times = arrived.filter((time) => time !== null).sort((a, b) => a - b),
      last = times.at(-1) ?? 0;
    const middle =
      times.length % 2
        ? times[times.length >> 1]
        : ((times[times.length / 2 - 1] ?? 0) + (times[times.length / 2] ?? 0)) / 2;
    return {
      late: arrived.map((time) => (time === null ? null : Math.max(0, time - middle))),
      wait: arrived.map((time, row) =>
        time === null ? null : way === model.native ? last - time : decided[row] - time,
      ),
      end: last,
      who: arrived.indexOf(last),
      alone: last - (times.at(-2) ?? last),
    };
  }

  draw(ctx, seen) {
    const { column, row } = this,
      count = model.operations.length;
    const first = clamp(Math.floor((seen.x - 4) / column) - 1, 0, count),
      last = clamp(Math.ceil((seen.x + seen.width - NAMES) / column), 0, count);
    ctx.fillStyle = tones.accent;
    ctx.globalAlpha = 0.13;
    ctx.fillRect(NAMES + this.position * column, ABOVE - 4, column, model.ranks.length * row + 8);
    for (let index = first; index < last; index++) {
      const { late, wait } = this.facts[index],
        operation = model.operations[index],
        x = NAMES + index * column + 1;
      for (let rank = 0; rank < model.ranks.length; rank++) {
        const y = ABOVE + rank * row + 1,
          depth = (value) => (value ? 0.14 + 0.86 * Math.sqrt(value / this.most) : 0);
        ctx.globalAlpha = late[rank] === null ? 0 : 0.07;
        ctx.fillStyle = tones.ink;
        ctx.fillRect(x, y, column - 2, row - 2);
        const isLate = late[rank] > 0 && late[rank] >= wait[rank];
        ctx.globalAlpha = depth(isLate ? late[rank] : wait[rank]);
        ctx.fillStyle = tones[isLate ? "late" : "helper"];
        ctx.fillRect(x, y, column - 2, row - 2);
        ctx.globalAlpha = 1;
        if (operation.late.includes(model.ranks[rank])) {
          ctx.strokeStyle = tones.ink;
          ctx.lineWidth = 1.5;
          ctx.strokeRect(x + 0.25, y + 0.25, column - 2.5, row - 2.5);
        }
      }
    }
    ctx.globalAlpha = 1;
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, seen.width, ABOVE - 5);
    const every = Math.ceil(30 / column);
    for (let index = first; index < last; index++) {
      const { number, way } = model.operations[index],
        current = index === this.position;
      ctx.fillStyle = tones[way === model.native ? "faint" : "whole"];
      ctx.globalAlpha = way === model.native ? 0.35 : 1;
      ctx.fillRect(NAMES + index * column + 1, seen.y + 24, column - 2, 6);
      ctx.globalAlpha = 1;
      if (current || (number % every === 0 && Math.abs(index - this.position) >= every))
        text(ctx, `${number}`, NAMES + (index + 0.5) * column, seen.y + 11, {
          align: "center",
          size: 10.5,
          tone: current ? "accent" : "faint",
          weight: current ? 700 : 400,
        });
    }
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, NAMES - 2, seen.height);
    text(ctx, "ran by", seen.x + NAMES - 10, seen.y + 27, {
      align: "right",
      size: 10,
      tone: "faint",
    });
    for (let rank = 0; rank < model.ranks.length; rank += Math.ceil(11 / row)) {
      const y = ABOVE + (rank + 0.5) * row;
      if (y > seen.y + ABOVE - 6)
        text(
          ctx,
          row >= 18 ? `rank ${model.ranks[rank]}` : `${model.ranks[rank]}`,
          seen.x + NAMES - 10,
          y + 0.5,
          { align: "right", size: Math.min(11.5, row - 1) },
        );
    }
  }

  at(x, y) {
    const index = Math.floor((x - NAMES) / this.column),
      rank = Math.floor((y - ABOVE) / this.row);
    return index >= 0 && index < model.operations.length && rank < model.ranks.length
      ? { index, rank }
      : null;
  }

  tell(x, y) {
    const here = this.at(x, y);
    if (!here) return "";
    const operation = model.operations[here.index],
      { late, wait } = this.facts[here.index],
      name = `operation ${operation.number}`;
    if (here.rank < 0) return `${name}: ${this.ran(operation)}\n${operation.reason}`;
    if (late[here.rank] === null) return `rank ${model.ranks[here.rank]} has no record of ${name}`;
    return [
      `rank ${model.ranks[here.rank]}, ${name}`,
      `came ${duration(operation.arrived[here.rank])} after the first`,
      `waited ${duration(wait[here.rank])} before it could begin`,
      operation.late.includes(model.ranks[here.rank]) ? "was taken to be late" : "",
    ]
      .filter(Boolean)
      .join("\n");
  }

  click(x, y) {
    const here = this.at(x, y);
    if (!here) return;
    this.player.pause();
    this.player.go(here.index);
  }

  /** How an operation ran, and without whom. */
  ran({ way, late }) {
    return late.length ? `${way}, late: ${late.join(", ")}` : way;
  }
}
