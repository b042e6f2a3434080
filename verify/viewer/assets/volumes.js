// Who holds how much of which chunk, where nothing is added up: TE-CCL's flows, epoch by epoch.

class Volumes {
  /** Columns are (owner, chunk); a transfer is src, dst, column, volume. */
  constructor({ ranks, rounds, columns, moves, wanted }) {
    Object.assign(this, { ranks, rounds, columns, moves, wanted });
    this.low = 0;
    this.width = this.high = columns.length;
    this.history = [this.start()];
    const all = rounds.map((flat) => flat.length >> 2);
    this.payload = all.map((count) => new Uint8Array(count).fill(1));
    this.share = all.map((count) => new Uint16Array(count).fill(ranks));
    for (const round of rounds) this.history.push(this.after(this.history.at(-1), round));
    this.go(0);
  }

  start() {
    const at = new Float64Array(this.ranks * this.width);
    this.columns.forEach(({ owner }, column) => {
      at[owner * this.width + column] = 1;
    });
    return at;
  }

  after(before, round) {
    const at = before.slice();
    for (let i = 0; i < round.length; i += 4) {
      if (this.moves) at[round[i] * this.width + round[i + 2]] -= round[i + 3];
      at[round[i + 1] * this.width + round[i + 2]] += round[i + 3];
    }
    return at;
  }

  go(position) {
    this.position = position;
    this.at = this.history[position];
    const least = 1 - 1e-4;
    this.whole = new Uint32Array(this.ranks);
    this.held = new Float64Array(this.ranks);
    this.tone = new Uint8Array(this.at.length);
    this.wants = new Uint32Array(this.ranks);
    for (let rank = 0; rank < this.ranks; rank++) {
      for (let column = 0; column < this.width; column++) {
        const cell = rank * this.width + column,
          wanted = this.isWanted(rank, column);
        this.tone[cell] = wanted && this.at[cell] >= least ? 3 : this.at[cell] > 1e-4 ? 1 : 0;
        this.held[rank] += Math.min(1, this.at[cell]);
        this.wants[rank] += wanted;
        this.whole[rank] += wanted && this.at[cell] >= least;
      }
    }
  }

  isWanted(rank, column) {
    return this.wanted[column] === -1 || this.wanted[column] === rank;
  }

  get complete() {
    return this.whole.reduce((sum, whole, rank) => sum + (whole === this.wants[rank]), 0);
  }

  part(rank, column) {
    return clamp(this.at[rank * this.width + column], 0, 1);
  }

  describe(rank, column) {
    const part = this.part(rank, column);
    return `${shown(part)} of it is here${this.isWanted(rank, column) ? "; wanted here" : ""}`;
  }
}
