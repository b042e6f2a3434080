// A canvas that shows the visible part of a picture of any size: it scrolls, and draws what is seen.

let frames = 0; // drawn by all surfaces since the page began

class Surface {
  /**
   * `draw(ctx, seen)` draws in the picture's coordinates; `seen` is the visible rectangle.
   * `tell(x, y)` is the tip at a place, `click(x, y)` what a click there does.
   */
  constructor(label, { draw, tell = () => "", click = null, most = 620 }) {
    this.draw = draw;
    this.most = most;
    this.canvas = el("canvas", { role: "img", "aria-label": label });
    this.sizer = el("div", {}, this.canvas);
    this.element = el(
      "div",
      { class: "surface", tabindex: "0", role: "group", "aria-label": label },
      this.sizer,
    );
    this.width = this.height = 0;
    this.asked = false;
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [
        event.clientX - box.left + this.element.scrollLeft,
        event.clientY - box.top + this.element.scrollTop,
      ];
    };
    this.element.addEventListener("scroll", () => this.ask());
    this.canvas.addEventListener("pointermove", (event) => showTip(tell(...place(event)), event));
    this.canvas.addEventListener("pointerleave", () => showTip(""));
    if (click) {
      this.canvas.addEventListener("click", (event) => click(...place(event)));
      this.canvas.style.cursor = "pointer";
    }
    onTheme.push(() => this.ask());
    new ResizeObserver(() => this.fit()).observe(this.element);
  }

  /** The room there is, in CSS pixels. */
  get room() {
    return this.element.clientWidth;
  }

  /** How large the picture is; called by `fitted` whenever the room changes. */
  size(width, height) {
    this.width = width;
    this.height = height;
    this.sizer.style.width = `${Math.max(1, width)}px`;
    this.sizer.style.height = `${Math.max(1, height)}px`;
    this.element.style.height = `${Math.min(height, this.most) + (width > this.room ? 12 : 0)}px`;
  }

  fit() {
    this.fitted?.();
    this.ask();
  }

  /** Draw at the next frame, once however often it is asked for. */
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.paint();
    });
  }

  paint() {
    const width = Math.min(this.element.clientWidth, this.width),
      height = Math.min(this.element.clientHeight, this.height);
    if (!(width > 0 && height > 0)) return;
    frames += 1;
    const ratio = Math.min(3, devicePixelRatio || 1);
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const ctx = this.canvas.getContext("2d");
    const seen = { x: this.element.scrollLeft, y: this.element.scrollTop, width, height };
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, height);
    ctx.translate(-seen.x, -seen.y);
    ctx.textBaseline = "middle";
    this.draw(ctx, seen);
  }

  /** Scroll so that x lies in the middle third. */
  reveal(x) {
    const { clientWidth, scrollLeft } = this.element;
    if (x < scrollLeft + clientWidth * 0.3 || x > scrollLeft + clientWidth * 0.75) {
      this.element.scrollLeft = x - clientWidth * 0.45;
    }
  }
}

function text(
  ctx,
  words,
  x,
  y,
  { size = 11, tone = "soft", align = "left", weight = 400, mono = false } = {},
) {
  ctx.font = `${weight} ${size}px ${mono ? tones.mono : tones.sans}`;
  ctx.fillStyle = tones[tone] ?? tone;
  ctx.textAlign = align;
  ctx.fillText(words, x, y);
}

/** Hatching, for where somebody is absent. */
function hatch(ctx, x, y, width, height) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width, height);
  ctx.clip();
  ctx.strokeStyle = tones.strong;
  ctx.globalAlpha = 0.6;
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (let at = Math.floor((x - height) / 7) * 7; at < x + width; at += 7) {
    ctx.moveTo(at, y + height);
    ctx.lineTo(at + height, y);
  }
  ctx.stroke();
  ctx.restore();
}

/** About `count` round numbers from 0 to `end`. */
function ticks(end, count, whole = false) {
  if (!(end > 0)) return [0];
  const rough = end / Math.max(1, count),
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10]
    .map((times) => times * power)
    .find((value) => value >= rough && (!whole || value >= 1));
  return Array.from(
    { length: Math.floor(end / step + 1e-9) + 1 },
    (_, index) => +(index * step).toPrecision(12),
  );
}

/** The buttons that narrow and widen a picture: `rescale(times)` does it. */
function zoomButtons(rescale) {
  const button = (sign, label, times) =>
    el(
      "button",
      { type: "button", class: "link", "aria-label": label, onclick: () => rescale(times) },
      sign,
    );
  return el("span", {}, button("−", "Narrower", 1 / 1.5), " zoom ", button("+", "Wider", 1.5));
}
