// Who holds which contributions: verify's meaning of a schedule (docs/reference/format.md), run in the page.
// Per (rank, chunk) two bits for each contribution: it is there; it is there more than once.

const TONES = ["none", "helper", "late", "whole", "fault"]; // of a value, by what is in it

class Holdings {
  constructor({ ranks, shown: [low, high], rounds, late }) {
    Object.assign(this, { ranks, low, high, rounds });
    this.width = high - low;
    this.words = (ranks + 31) >> 5;
    const cells = ranks * this.width;
    this.once = new Uint32Array(cells * this.words);
    this.more = new Uint32Array(cells * this.words);
    this.number = new Uint16Array(cells); // contributions that are there
    this.tone = new Uint8Array(cells);
    this.whole = new Uint32Array(ranks); // chunks that are complete
    this.held = new Uint32Array(ranks); // contributions, of all chunks
    this.lateMask = new Uint32Array(this.words);
    for (const rank of late) this.lateMask[rank >> 5] |= 1 << (rank & 31);
    this.position = 0;
    for (let rank = 0; rank < ranks; rank++) {
      for (let c = 0; c < this.width; c++) {
        const cell = rank * this.width + c;
        this.once[cell * this.words + (rank >> 5)] = 1 << (rank & 31);
        this.refresh(cell);
      }
    }
    this.before = []; // per round done: what its targets held
    this.payload = rounds.map((flat) => new Uint8Array(flat.length >> 2)); // tone of what was sent
    this.share = rounds.map((flat) => new Uint16Array(flat.length >> 2)); // contributions in it
    while (this.position < rounds.length) this.forward(true);
    this.go(0);
  }

  cell(rank, chunk) {
    return rank * this.width + chunk - this.low;
  }

  /** Bring the figures of a cell up to date with its bits. */
  refresh(cell) {
    const rank = Math.floor(cell / this.width),
      at = cell * this.words;
    let number = 0,
      late = 0,
      twice = 0;
    for (let w = 0; w < this.words; w++) {
      number += bits(this.once[at + w]);
      late |= this.once[at + w] & this.lateMask[w];
      twice |= this.more[at + w];
    }
    this.held[rank] += number - this.number[cell];
    this.number[cell] = number;
    const tone = twice ? 4 : number === this.ranks ? 3 : late ? 2 : number ? 1 : 0;
    this.whole[rank] += (tone === 3) - (this.tone[cell] === 3);
    this.tone[cell] = tone;
  }

  forward(first = false) {
    const round = this.rounds[this.position],
      W = this.words,
      count = round.length >> 2;
    const sent = new Uint32Array(count * 2 * W),
      saved = new Uint32Array(count * 2 * W);
    for (let i = 0; i < count; i++) {
      // all transfers read the start of the round
      const from = this.cell(round[4 * i], round[4 * i + 2]);
      sent.set(this.once.subarray(from * W, (from + 1) * W), 2 * i * W);
      sent.set(this.more.subarray(from * W, (from + 1) * W), (2 * i + 1) * W);
      if (first) {
        this.payload[this.position][i] = this.tone[from];
        this.share[this.position][i] = this.number[from];
      }
    }
    for (let i = 0; i < count; i++) {
      const cell = this.cell(round[4 * i + 1], round[4 * i + 2]),
        reduce = round[4 * i + 3];
      for (let w = 0; w < W; w++) {
        const at = cell * W + w,
          once = sent[2 * i * W + w],
          more = sent[(2 * i + 1) * W + w];
        saved[2 * i * W + w] = this.once[at];
        saved[(2 * i + 1) * W + w] = this.more[at];
        this.more[at] = reduce ? this.more[at] | more | (this.once[at] & once) : more;
        this.once[at] = reduce ? this.once[at] | once : once;
      }
      this.refresh(cell);
    }
    this.before.push(saved);
    this.position += 1;
  }

  back() {
    this.position -= 1;
    const round = this.rounds[this.position],
      saved = this.before.pop(),
      W = this.words;
    for (let i = (round.length >> 2) - 1; i >= 0; i--) {
      const cell = this.cell(round[4 * i + 1], round[4 * i + 2]);
      for (let w = 0; w < W; w++) {
        this.once[cell * W + w] = saved[2 * i * W + w];
        this.more[cell * W + w] = saved[(2 * i + 1) * W + w];
      }
      this.refresh(cell);
    }
  }

  go(position) {
    while (this.position < position) this.forward();
    while (this.position > position) this.back();
  }

  /** How often a contribution is there: 0, 1, or 2 for more than once. */
  count(rank, chunk, contribution) {
    const at = this.cell(rank, chunk) * this.words + (contribution >> 5),
      bit = 1 << (contribution & 31);
    return this.more[at] & bit ? 2 : this.once[at] & bit ? 1 : 0;
  }

  /** Ranks that hold every contribution to every chunk once. */
  get complete() {
    return this.whole.reduce((sum, whole) => sum + (whole === this.width), 0);
  }

  describe(rank, chunk) {
    const of = [0, 1, 2].map((times) => []),
      all = this.ranks;
    for (let r = 0; r < all; r++) of[this.count(rank, chunk, r)].push(r);
    const list = (ranks) =>
      ranks.length > 24 ? `${ranks.slice(0, 24).join(", ")} … (${ranks.length})` : ranks.join(", ");
    if (!of[2].length && of[1].length === all) return "complete: every contribution, once";
    return [
      `${of[1].length + of[2].length} of ${all} contributions: ${list([...of[1], ...of[2]].sort((a, b) => a - b)) || "none"}`,
      of[2].length ? `more than once: ${list(of[2])}` : `missing: ${list(of[0])}`,
    ].join("\n");
  }
}

function bits(word) {
  word -= (word >>> 1) & 0x55555555;
  word = (word & 0x33333333) + ((word >>> 2) & 0x33333333);
  return Math.imul((word + (word >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
}
