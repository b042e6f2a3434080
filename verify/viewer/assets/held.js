// Ranks by chunks: the contributions that each rank holds to each chunk at this moment.

class Held {
  constructor(view) {
    this.view = view;
    this.surface = new Surface("Ranks by chunks: the contributions held", {
      draw: (ctx, seen) => this.draw(ctx, seen),
      tell: (x, y) => this.tell(x, y),
      click: (x, y) => this.click(x, y),
      most: 720,
    });
    this.element = this.surface.element;
    this.surface.fitted = () => {
      const room = this.surface.room - LEFT - 2;
      this.column = clamp(room / view.holdings.width, model.ranks > 24 ? 10 : 16, 140);
      this.row = clamp(Math.floor(470 / model.ranks), 9, 30);
      this.surface.size(
        LEFT + Math.max(room, view.holdings.width * this.column),
        24 + model.ranks * this.row + 4,
      );
    };
  }

  draw(ctx, seen) {
    const { view, column, row } = this,
      { holdings } = view;
    const first = clamp(Math.floor((seen.x - LEFT) / column), 0, holdings.width),
      last = clamp(Math.ceil((seen.x + seen.width - LEFT) / column), 0, holdings.width);
    const top = clamp(Math.floor((seen.y - 24) / row), 0, model.ranks),
      bottom = clamp(Math.ceil((seen.y + seen.height - 24) / row), 0, model.ranks);
    const changed = view.changed;
    for (let rank = top; rank < bottom; rank++) {
      for (let c = first; c < last; c++) {
        const x = LEFT + c * column,
          y = 24 + rank * row;
        if (x + column < seen.x + LEFT) continue;
        this.cell(
          ctx,
          rank,
          c + holdings.low,
          x + 1,
          y + 1,
          column - 2,
          row - 2,
          changed.has(rank * holdings.width + c),
        );
      }
    }
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, seen.width, 23);
    const wide = 8 + 6.5 * view.chunkName(holdings.high - 1).length,
      every = Math.ceil(wide / column);
    for (let c = first; c < last; c++) {
      const chunk = c + holdings.low,
        followed = view.followed === chunk;
      if (followed || c % every === 0)
        text(ctx, view.chunkName(chunk), LEFT + c * column + column / 2, seen.y + 11, {
          align: "center",
          size: 10.5,
          mono: true,
          tone: followed ? "accent" : "faint",
          weight: followed ? 700 : 400,
        });
      if (followed) {
        ctx.strokeStyle = tones.accent;
        ctx.lineWidth = 1.5;
        ctx.strokeRect(
          LEFT + c * column - 0.5,
          seen.y + 20,
          column + 1,
          model.ranks * row + 5 - seen.y,
        );
      }
    }
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, LEFT - 2, seen.height);
    text(ctx, "chunk", seen.x + LEFT - 10, seen.y + 11, {
      align: "right",
      tone: "faint",
      size: 10,
    });
    for (let rank = top; rank < bottom; rank += Math.ceil(11 / row)) {
      const late = view.late.has(rank),
        y = 24 + rank * row + row / 2;
      if (y > seen.y + 22)
        text(
          ctx,
          row >= 18 ? `rank ${view.nameOf(rank)}` : view.nameOf(rank),
          seen.x + LEFT - 10,
          y + 0.5,
          {
            align: "right",
            tone: late ? "latename" : "soft",
            weight: late ? 700 : 400,
            size: Math.min(11.5, row - 1),
          },
        );
    }
  }

  cell(ctx, rank, chunk, x, y, width, height, changed) {
    const { holdings, followed } = this.view,
      tone = TONES[holdings.tone[rank * holdings.width + chunk - holdings.low]];
    const dim = followed !== null && followed !== chunk ? 0.35 : 1;
    ctx.globalAlpha = 0.07 * dim;
    ctx.fillStyle = tones.ink;
    ctx.fillRect(x, y, width, height);
    ctx.globalAlpha = dim;
    if (tone === "whole") {
      ctx.fillStyle = tones.whole;
      ctx.fillRect(x, y, width, height);
    } else if (tone !== "none") this.view.drawContent(ctx, rank, chunk, x, y, width, height);
    const over = this.view.position === model.rounds.length;
    if (tone === "fault" || (over && this.view.wrong.has(`${rank},${chunk}`))) {
      ctx.strokeStyle = tones.fault;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(x + 0.75, y + 0.75, width - 1.5, height - 1.5);
    }
    if (changed) {
      ctx.strokeStyle = tones.ink;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(x - 0.25, y - 0.25, width + 0.5, height + 0.5);
    }
    ctx.globalAlpha = 1;
  }

  at(x, y) {
    const c = Math.floor((x - LEFT) / this.column),
      rank = Math.floor((y - 24) / this.row);
    return c >= 0 && c < this.view.holdings.width && rank < model.ranks
      ? { rank, chunk: c + this.view.holdings.low }
      : null;
  }

  tell(x, y) {
    const here = this.at(x, y);
    if (!here) return "";
    if (here.rank < 0) return `chunk ${this.view.chunkName(here.chunk)}: click to follow it`;
    return `rank ${this.view.nameOf(here.rank)}, chunk ${this.view.chunkName(here.chunk)}\n${this.view.holdings.describe(here.rank, here.chunk)}`;
  }

  click(x, y) {
    const here = this.at(x, y);
    if (here) this.view.follow(this.view.followed === here.chunk ? null : here.chunk);
  }
}
