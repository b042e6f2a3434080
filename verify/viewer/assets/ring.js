// All ranks on a ring, and the transfers of one round between them.

const FEW = 18; // ranks of which each arrow carries the name of its chunk
const APART = 26; // pixels between the arrows of both directions, half-way: more than a name takes
const USUAL_PLACE = 0.37; // of a name, as a share of its arrow
const OTHER_PLACES = [0.5, 0.25, 0.6, 0.72]; // where another name is there

class Ring {
  constructor(view) {
    this.view = view;
    this.surface = new Surface("Ranks on a ring, with the transfers of this round", {
      draw: (ctx, seen) => this.draw(ctx, seen),
      tell: (x, y) => this.tell(x, y),
      most: 700,
    });
    this.surface.fitted = () => {
      const side = clamp(this.surface.room, 240, 620);
      this.surface.size(side, side);
    };
    this.element = this.surface.element;
    this.element.style.display = "grid";
    this.element.style.justifyContent = "center";
    this.progress = 1;
  }

  layout() {
    const { ranks } = model,
      side = this.surface.width;
    // Neighbours have room between them for an arrow each way.
    const node = clamp((side * 0.8) / (ranks + 3), ranks > 200 ? 1.5 : 4, side / 15),
      ring = side / 2 - node - (ranks > 28 ? 24 : 22);
    const angle = (rank) => (2 * Math.PI * rank) / ranks - Math.PI / 2;
    const place = (rank, radius = ring) => [
      side / 2 + radius * Math.cos(angle(rank)),
      side / 2 + radius * Math.sin(angle(rank)),
    ];
    return { side, node, ring, place };
  }

  draw(ctx) {
    const { view } = this,
      { side, node, ring, place } = this.layout();
    ctx.strokeStyle = tones.line;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.arc(side / 2, side / 2, ring, 0, 2 * Math.PI);
    ctx.stroke();
    const round = view.position - 1;
    if (round >= 0) this.transfers(ctx, round, { side, node, place });
    else
      text(
        ctx,
        model.meaningful === false ? "not well formed" : "before the first round",
        side / 2,
        side / 2,
        { align: "center", tone: "faint", size: 12 },
      );
    const absent = view.absentAt(Math.max(round, 0));
    for (let rank = 0; rank < model.ranks; rank++)
      this.node(ctx, rank, place, node, ring, absent.has(rank));
  }

  node(ctx, rank, place, size, ring, absent) {
    const { view } = this,
      [x, y] = place(rank),
      { whole, partial, tone } = view.progressOf(rank);
    const late = view.late.has(rank),
      width = Math.max(1.5, size * (size < 11 ? 0.5 : 0.2));
    ctx.beginPath();
    ctx.arc(x, y, size, 0, 2 * Math.PI);
    ctx.fillStyle = tones.panel;
    ctx.fill();
    ctx.lineWidth = width;
    const arc = (from, to, colour, alpha = 1) => {
      if (to <= from) return;
      ctx.globalAlpha = alpha;
      ctx.strokeStyle = colour;
      ctx.beginPath();
      ctx.arc(
        x,
        y,
        size - width / 2,
        2 * Math.PI * from - Math.PI / 2,
        2 * Math.PI * to - Math.PI / 2,
      );
      ctx.stroke();
      ctx.globalAlpha = 1;
    };
    if (absent) ctx.setLineDash([Math.max(2, size / 4), Math.max(2, size / 4)]);
    arc(0, 1, tones.strong, absent ? 1 : 0.55);
    ctx.setLineDash([]);
    if (!absent) arc(whole, Math.min(1, whole + partial), tones[tone]);
    arc(0, whole, tones.whole);
    if (whole >= 1) {
      ctx.globalAlpha = 0.16;
      ctx.fillStyle = tones.whole;
      ctx.fill();
      ctx.globalAlpha = 1;
    }
    const name = view.nameOf(rank);
    if (size >= 11)
      text(ctx, name, x, y + 0.5, {
        align: "center",
        tone: late ? "latename" : "ink",
        weight: late ? 700 : 600,
        size: clamp(size * 0.72, 9, 17),
      });
    else if (model.ranks <= 64 || rank % Math.ceil(model.ranks / 32) === 0) {
      const [lx, ly] = place(rank, ring + size + 10);
      text(ctx, name, lx, ly, {
        align: "center",
        tone: late ? "latename" : "soft",
        size: 9.5,
        weight: late ? 700 : 400,
      });
    }
    if (absent && size >= 16)
      text(ctx, "absent", x, y + size + 9, { align: "center", tone: "faint", size: 10 });
  }

  /**
   * The arrow from one rank to another: `at(t)`, of which `from` .. `to` is drawn. It bows to the right
   * of its direction, so that the arrows of both directions between two ranks lie apart.
   */
  curve(src, dst, { side, place, node }) {
    const [ax, ay] = place(src),
      [bx, by] = place(dst),
      middle = side / 2;
    const mx = (ax + bx) / 2,
      my = (ay + by) / 2,
      length = Math.hypot(bx - ax, by - ay) || 1;
    // Both directions are pulled to the middle alike, and pushed apart by APART pixels half-way.
    const pull = 0.42 * (1 - length / (2 * middle)) + 0.12,
      lean = model.ranks <= FEW ? APART : Math.min(APART, 5 + length * 0.05);
    const cx = mx + (middle - mx) * pull - ((by - ay) / length) * lean,
      cy = my + (middle - my) * pull + ((bx - ax) / length) * lean;
    const at = (t) => [
      (1 - t) ** 2 * ax + 2 * t * (1 - t) * cx + t * t * bx,
      (1 - t) ** 2 * ay + 2 * t * (1 - t) * cy + t * t * by,
    ];
    const reach = Math.min(0.42, (node + 3) / (length + 1)); // stay outside of the nodes
    return { at, from: reach, to: 1 - reach };
  }

  transfers(ctx, round, geometry) {
    const { view } = this,
      flat = model.rounds[round],
      few = model.ranks <= FEW,
      many = model.ranks > 160;
    const moving = this.progress < 1,
      packets = [];
    for (let i = 0; 4 * i < flat.length; i++) {
      const [src, dst, chunk] = [flat[4 * i], flat[4 * i + 1], flat[4 * i + 2]];
      const { at, from, to } = this.curve(src, dst, geometry),
        faulty = view.isFaulty(round, src, dst, chunk);
      const other = view.followed !== null && view.followed !== chunk;
      const colour = tones[faulty ? "fault" : view.toneOf(round, i)];
      ctx.globalAlpha = other ? 0.12 : many ? 0.3 : moving ? 0.4 : 0.85;
      ctx.strokeStyle = colour;
      ctx.lineWidth = faulty ? 4 : few ? 2 : many ? 0.5 : 1.3;
      ctx.beginPath();
      for (let s = 0; s <= 24; s++) ctx.lineTo(...at(from + ((to - from) * s) / 24));
      ctx.stroke();
      const [hx, hy] = at(to),
        [tx, ty] = at(to - 0.04),
        turn = Math.atan2(hy - ty, hx - tx),
        head = faulty || few ? 8 : many ? 0 : 5;
      ctx.fillStyle = colour;
      ctx.beginPath();
      ctx.moveTo(hx, hy);
      ctx.lineTo(hx - head * Math.cos(turn - 0.42), hy - head * Math.sin(turn - 0.42));
      ctx.lineTo(hx - head * Math.cos(turn + 0.42), hy - head * Math.sin(turn + 0.42));
      ctx.fill();
      if (!other) {
        const label = view.chunkName(chunk),
          size = few ? Math.max(9, 4 + 3.4 * label.length) : 3.5;
        const where = this.placeOfName({ at, from, to }, size, packets);
        packets.push({ where, label, size, colour });
      }
    }
    ctx.globalAlpha = 1;
    this.packets = packets;
    for (const { where: [x, y], label, size, colour } of packets) {
      if (!few && !moving) continue;
      ctx.fillStyle = few ? tones.panel : colour;
      ctx.strokeStyle = colour;
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      ctx.arc(x, y, size, 0, 2 * Math.PI);
      ctx.fill();
      ctx.stroke();
      if (few)
        text(ctx, label, x, y + 0.5, { align: "center", tone: "ink", size: 10.5, mono: true });
    }
  }

  /** Where a name of this size stands: on its arrow, and on none of the names that are there. */
  placeOfName({ at, from, to }, size, packets) {
    const along = (share) => at(from + (to - from) * share);
    if (this.progress < 1) return along(this.progress);
    if (model.ranks > FEW) return along(USUAL_PLACE);

    const [ax, ay] = along(0),
      [bx, by] = along(1),
      length = Math.hypot(bx - ax, by - ay);
    if (length < 4 * size) {
      // It would hide the arrow, so it stands beside it, where the arrow bows to.
      const [x, y] = along(0.5),
        aside = (size + 3) / (length || 1);
      return [x - (by - ay) * aside, y + (bx - ax) * aside];
    }
    for (const share of [USUAL_PLACE, ...OTHER_PLACES]) {
      const [x, y] = along(share);
      const isFree = packets.every(
        ({ where, size: other }) => Math.hypot(x - where[0], y - where[1]) >= size + other,
      );
      if (isFree) return [x, y];
    }
    return along(USUAL_PLACE);
  }

  tell(x, y) {
    const { node, place } = this.layout();
    for (let rank = 0; rank < model.ranks; rank++) {
      const [nx, ny] = place(rank);
      if (Math.hypot(x - nx, y - ny) <= node + 3) return this.view.tellRank(rank);
    }
    return "";
  }
}
