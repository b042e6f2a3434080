// Rows of bars along one axis: passes and messages of a pipeline, steps of blocks.

const OTHERS_OPACITY = 0.85; // of bars that are not on the critical path, where there is one
const SMALLEST_LABEL = 8; // pixels; a bar with less room has no label
const CUT_LABEL = 9.5; // pixels; of a label of which only the beginning fits
const LABEL_WIDTH = 0.62; // of a letter, in sizes of the font; monospace fonts need 0.60 to 0.62

class Timeline {
  /**
   * `rows` [{name, tone, heading, note}]: a heading is a row of its own above others, with a note
   * beside its name; `bars` [{row, begin, end, tone, label, hollow, fault, critical, tail}] by
   * begin, with a `short` label where the whole one does not fit;
   * `arrows` [{from: [row, x], to: [row, x], tone, fault, critical}]; `marks` [{at, tone}] are dashed
   * lines through all rows; `end` of the axis.
   */
  constructor(
    label,
    {
      rows,
      bars,
      arrows = [],
      marks = [],
      end,
      unit = "",
      whole = false,
      tell,
      pick = null,
      left = 74,
      row = 30,
      lane = null,
    },
  ) {
    Object.assign(this, { whole, unit, tellBar: tell, pick, left, rowHeight: row, lane });
    this.zoom = 1;
    this.dimmed = null;
    this.top = 26;
    this.set({ rows, bars, arrows, marks, end });
    this.surface = new Surface(label, {
      draw: (ctx, seen) => this.draw(ctx, seen),
      tell: (x, y) => this.tell(x, y),
      click: pick ? (x, y) => this.click(x, y) : null,
      most: 680,
    });
    this.element = this.surface.element;
    this.surface.fitted = () => {
      this.scale = ((this.surface.room - this.left - 26) * this.zoom) / this.end;
      this.surface.size(
        this.left + this.end * this.scale + 24,
        this.top + this.rows.length * this.pitch + 10,
      );
    };
  }

  /** Show something else. */
  set({ rows, bars, arrows = [], marks = [], end }) {
    Object.assign(this, { rows, bars, arrows, marks, end: Math.max(end, 1e-9), cursor: end });
    this.pitch = clamp(Math.floor(600 / rows.length), 14, this.rowHeight + 14);
    this.height = Math.min(this.rowHeight, this.pitch - (this.pitch > 20 ? 8 : 3));
    this.byRow = rows.map(() => []);
    for (const bar of bars) this.byRow[bar.row].push(bar);
    for (const list of this.byRow) {
      list.sort((a, b) => a.begin - b.begin);
      list.forEach((bar, index) => {
        bar.next = list[index + 1]?.begin ?? Infinity;
      });
    }
    this.surface?.fit();
  }

  /** The room between a row and the next one. */
  get gap() {
    return this.pitch - this.height;
  }

  x(time) {
    return this.left + time * this.scale;
  }

  y(row) {
    return this.top + row * this.pitch + (this.pitch - this.height) / 2;
  }

  rescale(times) {
    this.zoom = clamp(this.zoom * times, 1, 400);
    this.surface.fit();
    this.surface.reveal(this.x(this.cursor));
  }

  /** The bars of a row that can be seen; ends grow with begins there, as a row does one at a time. */
  *visible(row, low, high) {
    const list = this.byRow[row];
    let from = 0,
      to = list.length;
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.drawnUntil(list[middle]) < low) from = middle + 1;
      else to = middle;
    }
    for (let i = Math.max(0, from - 1); i < list.length && list[i].begin <= high; i++)
      yield list[i];
  }

  draw(ctx, seen) {
    const low = (seen.x - this.left) / this.scale,
      high = (seen.x + seen.width - this.left) / this.scale;
    const top = clamp(Math.floor((seen.y - this.top) / this.pitch), 0, this.rows.length),
      bottom = clamp(
        Math.ceil((seen.y + seen.height - this.top) / this.pitch),
        0,
        this.rows.length,
      );
    const marks = ticks(this.end, Math.max(2, (this.end * this.scale) / 90), this.whole);
    for (const time of marks) {
      ctx.fillStyle = tones.line;
      ctx.fillRect(this.x(time), this.top - 4, 1, this.rows.length * this.pitch + 8);
    }
    for (let row = top; row < bottom; row++) {
      ctx.fillStyle = tones.ink;
      ctx.globalAlpha = 0.035;
      ctx.fillRect(
        Math.max(this.left, seen.x),
        this.y(row),
        Math.min(this.end * this.scale, seen.width),
        this.height,
      );
      ctx.globalAlpha = 1;
      this.lane?.(ctx, row, this, seen);
      let drawnTo = -1;
      for (const bar of this.visible(row, low, high)) {
        const to = this.x(bar.end);
        if (to - drawnTo < 0.35 && !bar.fault) continue; // would not be seen
        drawnTo = to;
        this.bar(ctx, bar);
      }
    }
    for (const arrow of this.arrows) this.arrow(ctx, arrow, low, high, top, bottom);
    for (const { at, tone } of this.marks) this.mark(ctx, this.x(at), tone);
    ctx.fillStyle = tones.accent;
    ctx.fillRect(this.x(this.cursor) - 0.75, this.top - 6, 1.5, this.rows.length * this.pitch + 12);
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, seen.width, this.top - 5);
    for (const time of marks)
      text(ctx, shown(time), this.x(time), seen.y + 9, {
        align: "center",
        size: 10.5,
        tone: "faint",
      });
    ctx.fillStyle = tones.panel;
    ctx.fillRect(seen.x, seen.y, this.left - 4, seen.height);
    if (this.unit)
      text(ctx, this.unit, seen.x + this.left - 12, seen.y + 9, {
        align: "right",
        size: 10,
        tone: "faint",
      });
    // The heading of the rows at the top stays in sight while they are scrolled past.
    const above = this.headingOver(top);
    const least = seen.y + this.top - (above === null ? 14 : 5 - this.pitch);
    for (let row = top; row < bottom; row++) {
      const { name, tone, heading } = this.rows[row];
      if (heading) this.heading(ctx, row, seen, this.top + row * this.pitch);
      else if (this.y(row) > least)
        text(ctx, name, seen.x + this.left - 12, this.y(row) + this.height / 2 + 0.5, {
          align: "right",
          size: Math.min(11.5, this.pitch - 2),
          tone: tone ?? "soft",
          weight: tone ? 700 : 400,
        });
    }
    if (above !== null) this.heading(ctx, above, seen, seen.y + this.top - 5);
  }

  /** The heading that the row belongs to, unless it is that row itself or there is none. */
  headingOver(row) {
    for (let at = Math.min(row, this.rows.length - 1); at >= 0; at--)
      if (this.rows[at].heading) return at < row ? at : null;
    return null;
  }

  /** A heading at a height: its name among the names, and its note beside it unless bars are there. */
  heading(ctx, row, seen, y) {
    const { name, note } = this.rows[row],
      isPinned = y !== this.top + row * this.pitch,
      middle = y + this.pitch / 2;
    if (!isPinned && y < seen.y + this.top - 10) return;
    ctx.fillStyle = tones.raised;
    ctx.fillRect(seen.x, y, isPinned ? seen.width : this.left - 4, this.pitch);
    ctx.fillStyle = tones.strong;
    ctx.fillRect(seen.x, isPinned ? y + this.pitch : y, seen.width, 1);
    const size = Math.min(11.5, this.pitch - 2);
    text(ctx, name, seen.x + 6, middle, { size, tone: "ink", weight: 700 });
    if (note && (isPinned || !this.byRow[row].length)) {
      ctx.font = `400 ${size}px ${tones.sans}`;
      ctx.fillStyle = tones.raised; // lines of messages must not strike the words through
      ctx.fillRect(seen.x + this.left, y + 1, ctx.measureText(note).width + 12, this.pitch - 1);
      text(ctx, note, seen.x + this.left + 6, middle, { size, tone: "soft" });
    }
  }

  /** A dashed line through all rows. */
  mark(ctx, x, tone) {
    ctx.strokeStyle = tones[tone];
    ctx.lineWidth = 1.5;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.moveTo(x, this.top - 4);
    ctx.lineTo(x, this.top + this.rows.length * this.pitch + 4);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  /** Where a bar and its tail end; the tail at the next bar at the latest. */
  drawnUntil({ end, tail = 0, next }) {
    return Math.min(end + tail, Math.max(end, next));
  }

  /** The tail of a bar, a dashed line. */
  tail(ctx, bar, opacity) {
    const from = this.x(bar.end),
      to = this.x(this.drawnUntil(bar)),
      middle = this.y(bar.row) + this.height / 2;
    if (to - from < 2) return;
    ctx.globalAlpha = opacity;
    ctx.strokeStyle = tones.soft;
    ctx.lineWidth = 1.5;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.moveTo(from, middle);
    ctx.lineTo(to, middle);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
  }

  bar(ctx, bar) {
    const x = this.x(bar.begin),
      y = this.y(bar.row),
      width = Math.max(0.8, (bar.end - bar.begin) * this.scale - 1),
      { height } = this;
    const future = bar.begin >= this.cursor,
      dim = this.dimmed?.(bar) ? 0.22 : 1;
    const colour = tones[bar.tone];
    if (bar.tail) this.tail(ctx, bar, dim * (future ? 0.4 : 1));
    const opacity = future ? 0.3 : bar.critical === false ? OTHERS_OPACITY : 1;
    ctx.globalAlpha = dim * opacity;
    ctx.beginPath();
    ctx.roundRect(x, y, width, height, Math.min(4, width / 3));
    if (bar.hollow) {
      ctx.setLineDash([3, 3]);
      ctx.strokeStyle = colour;
      ctx.lineWidth = 1;
      ctx.stroke();
      ctx.setLineDash([]);
    } else {
      ctx.fillStyle = colour;
      ctx.fill();
    }
    if (bar.critical || bar.fault) {
      ctx.globalAlpha = dim * (future && !bar.fault ? 0.4 : 1);
      ctx.strokeStyle = tones[bar.fault ? "fault" : "ink"];
      ctx.lineWidth = bar.fault ? 3 : width > 6 ? 2 : 1;
      ctx.stroke();
    }
    const label = this.labelOf(bar);
    if (label) {
      ctx.globalAlpha = dim * (future ? 0.8 : 1);
      text(ctx, label.words, x + width / 2, y + height / 2 + 0.5, {
        align: "center",
        size: label.size,
        tone: bar.hollow ? "ink" : readableOn(bar.tone, opacity),
        weight: 600,
        mono: true,
      });
    }
    ctx.globalAlpha = 1;
  }

  /** What is written on a bar, as large as it fits: {words, size}; null where there is no room. */
  labelOf({ label, short, begin, end }) {
    const room = (end - begin) * this.scale - 3,
      most = Math.min(11, this.height - 1);
    if (!label || most < SMALLEST_LABEL) return null;
    const sizeOf = (words) => Math.min(most, room / (words.length * LABEL_WIDTH));
    const isNumber = /^\d+$/.test(label); // cut, it would be another number
    const least = isNumber ? SMALLEST_LABEL : Math.min(most, CUT_LABEL);
    if (sizeOf(label) >= least) return { words: label, size: sizeOf(label) };
    const letters = Math.floor(room / (least * LABEL_WIDTH));
    if (letters >= (short ? 9 : 5) && !isNumber)
      return { words: `${label.slice(0, letters - 1)}…`, size: least };
    return short && sizeOf(short) >= SMALLEST_LABEL ? { words: short, size: sizeOf(short) } : null;
  }

  arrow(
    ctx,
    { from: [row, begin], to: [other, end], tone, fault, critical, bow = 0 },
    low,
    high,
    top,
    bottom,
  ) {
    if (
      Math.max(begin, end) < low ||
      Math.min(begin, end) > high ||
      Math.max(row, other) < top ||
      Math.min(row, other) > bottom
    )
      return;
    const down = other > row,
      level = other === row;
    const [ax, ay] = [
      this.x(begin),
      this.y(row) + (down ? this.height : 0),
    ];
    const [bx, by] = [
      this.x(end),
      this.y(other) + (level || down ? 0 : this.height),
    ];
    ctx.globalAlpha = fault ? 1 : begin >= this.cursor ? 0.14 : critical ? 0.95 : 0.45;
    ctx.strokeStyle = ctx.fillStyle = tones[fault ? "fault" : tone];
    ctx.lineWidth = fault ? 2.2 : critical ? 2 : 1.1;
    ctx.beginPath();
    ctx.moveTo(ax, ay);
    // Bowed to the left of its direction, so both ways differ; within a row above what is written.
    const length = Math.hypot(bx - ax, by - ay) || 1;
    const [cx, cy] = level
      ? [(ax + bx) / 2, ay - Math.max(10, 0.48 * this.pitch)]
      : [(ax + bx) / 2 + (bow * (by - ay)) / length, (ay + by) / 2 - (bow * (bx - ax)) / length];
    ctx.quadraticCurveTo(cx, cy, bx, by);
    ctx.stroke();
    if (fault || critical) {
      const turn = Math.atan2(by - cy, bx - cx),
        head = fault ? 9 : 6;
      ctx.beginPath();
      ctx.moveTo(bx, by);
      ctx.lineTo(bx - head * Math.cos(turn - 0.4), by - head * Math.sin(turn - 0.4));
      ctx.lineTo(bx - head * Math.cos(turn + 0.4), by - head * Math.sin(turn + 0.4));
      ctx.fill();
    }
    ctx.globalAlpha = 1;
  }

  rowAt(y) {
    const row = Math.floor((y - this.top) / this.pitch);
    return row >= 0 && row < this.rows.length ? row : null;
  }

  barAt(x, y) {
    const row = this.rowAt(y),
      time = (x - this.left) / this.scale;
    if (row === null) return null;
    for (const bar of this.visible(row, time, time))
      if (bar.begin <= time && time <= bar.end) return bar;
    return null;
  }

  tell(x, y) {
    const bar = this.barAt(x, y);
    return bar ? this.tellBar(bar) : "";
  }

  click(x, y) {
    this.pick(this.barAt(x, y), this.rowAt(y));
  }

  show(cursor) {
    this.cursor = cursor;
    this.surface.reveal(this.x(cursor));
    this.surface.ask();
  }
}
