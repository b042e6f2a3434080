// Position 0 .. length: so many steps are done. Keyboard, buttons, a slider, and the page's hash.

class Player {
  /**
   * `segments` [{name, length}] stand above the slider; `describe(position)` gives [bold, small];
   * `change(position)` redraws; `move(progress)` redraws a step under way (0 .. 1).
   */
  constructor({
    length,
    word,
    segments = [],
    describe,
    change,
    move = null,
    faults = [],
    keys = {},
  }) {
    Object.assign(this, { length, word, describe, change, move, faults });
    this.position = 0;
    this.progress = 1;
    this.playing = false;
    this.shortcuts = {
      " ": () => this.toggle(),
      ArrowRight: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      PageDown: () => this.step(10),
      PageUp: () => this.step(-10),
      Home: () => this.go(0),
      End: () => this.go(length),
      f: () => this.nextFault(),
      ...keys,
    };
    this.build(segments);
    addEventListener("keydown", (event) => this.pressed(event));
  }

  build(segments) {
    const key = (sign, label, act, name = null) =>
      el(
        "button",
        { type: "button", "aria-label": label, title: label, class: name, onclick: act },
        icon(sign),
      );
    this.playButton = key("play", "Play (space)", () => this.toggle(), "play");
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: this.length,
      step: 1,
      value: 0,
      "aria-label": `${this.word} shown`,
      oninput: () => this.go(+this.slider.value),
    });
    const marks = el("div", { class: "segments", "aria-hidden": "true" });
    let begin = 0;
    for (const { name, length } of segments.length > 40 ? [] : segments) {
      if (length)
        marks.append(
          el(
            "span",
            {
              style: {
                left: `${(100 * begin) / this.length}%`,
                width: `${(100 * length) / this.length}%`,
              },
              title: name,
            },
            name,
          ),
        );
      begin += length;
    }
    this.speed = el(
      "select",
      { "aria-label": "Speed" },
      [1, 2, 4, 8, 16, 60].map((rate) =>
        el("option", { value: rate, selected: rate === 2 }, `${rate}/s`),
      ),
    );
    this.bold = el("b");
    this.small = el("small");
    document.getElementById("player").replaceChildren(
      el(
        "div",
        { class: "deck" },
        el(
          "div",
          { class: "keys" },
          key("first", "To the start (home)", () => this.go(0)),
          key("back", `One ${this.word} back (left)`, () => this.step(-1)),
          this.playButton,
          key("on", `One ${this.word} on (right)`, () => this.step(1)),
          key("last", "To the end (end)", () => this.go(this.length)),
          this.faults.length ? key("fault", "To the fault (f)", () => this.nextFault(), "hot") : "",
        ),
        el("div", { class: "track" }, marks, this.slider),
        el("div", { class: "now" }, this.bold, this.small),
        this.speed,
        guide([
          ["space", "play"],
          ["← →", "step"],
          ["home end", "ends"],
          ...(this.faults.length ? [["f", "fault"]] : []),
        ]),
      ),
    );
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = event.target;
    if (at.matches?.("select, input[type=number]")) return;
    if (at.matches?.("button") && (event.key === " " || event.key === "Enter")) return;
    const act = this.shortcuts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  step(count) {
    this.pause();
    this.go(this.position + count);
  }

  nextFault() {
    if (!this.faults.length) return;
    this.pause();
    this.go(this.faults.find((at) => at > this.position) ?? this.faults[0]);
  }

  /** Show a position; a single step forward moves, unless the reader wants no motion. */
  go(position) {
    const wanted = clamp(Math.round(position), 0, this.length);
    const moves = this.move && wanted === this.position + 1 && !still.matches;
    this.position = wanted;
    this.progress = moves ? 0 : 1;
    if (moves) this.animate();
    this.show();
  }

  show() {
    const [bold, small] = this.describe(this.position);
    this.bold.textContent = this.bold.title = bold;
    this.small.textContent = this.small.title = small;
    this.slider.value = this.position;
    this.slider.setAttribute("aria-valuetext", `${bold}. ${small}`);
    if (!this.playing) announce(`${bold}. ${small}`);
    try {
      history.replaceState(null, "", `#${this.position}`);
    } catch {
      /* a page inside of another */
    }
    this.change(this.position);
  }

  animate() {
    const begun = performance.now(),
      lasts = Math.min(420, this.playing ? 850 / +this.speed.value : 420);
    const run = (this.run = (this.run ?? 0) + 1);
    const frame = (now) => {
      if (run !== this.run || this.progress >= 1) return;
      this.progress = clamp((now - begun) / lasts, 0, 1);
      this.move(this.progress);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.position === this.length) this.go(0);
    this.playing = true;
    this.button();
    this.tick();
  }

  tick() {
    clearTimeout(this.timer);
    if (!this.playing) return;
    if (this.position >= this.length) return this.pause();
    this.go(this.position + 1);
    this.timer = setTimeout(() => this.tick(), 1000 / +this.speed.value);
  }

  pause() {
    this.playing = false;
    clearTimeout(this.timer);
    this.button();
  }

  button() {
    this.playButton.replaceChildren(icon(this.playing ? "pause" : "play"));
    this.playButton.setAttribute("aria-label", this.playing ? "Pause (space)" : "Play (space)");
  }

  /** The position that the page's address asks for, else `otherwise`. */
  begin(otherwise = 0) {
    this.go(/^#\d+$/.test(location.hash) ? +location.hash.slice(1) : otherwise);
  }
}
