// What all views share: elements, themes, tones, numbers, the tip.

const model = JSON.parse(document.getElementById("model").textContent);
const root = document.documentElement;
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** An element; children that are texts become text nodes, so nothing of a file is markup. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style")
      for (const [k, v] of Object.entries(value)) made.style.setProperty(k, v);
    else if (value !== false && value !== null && value !== undefined)
      made.setAttribute(key, value === true ? "" : value);
  }
  made.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== ""),
  );
  return made;
}

const plural = (count, word, many = `${word}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? word : many}`;
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const shown = (value) =>
  Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(6));

// Themes: the system's, until the reader chooses. Surfaces redraw on a change.
const tones = {};
const onTheme = [];
const dark = matchMedia("(prefers-color-scheme: dark)");

function readTones() {
  const style = getComputedStyle(root);
  for (const name of [
    "ground",
    "panel",
    "raised",
    "line",
    "strong",
    "ink",
    "soft",
    "faint",
    "helper",
    "late",
    "latename",
    "whole",
    "fault",
    "accent",
    "forward",
    "input",
    "weight",
    "fused",
    "sans",
    "mono",
  ]) {
    tones[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

const NEARLY_BLACK = "#0e1117";
const WHITE = "#ffffff";

/** Red, green and blue of a colour like `#0e1117`, 0 .. 255. */
function partsOf(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** How bright a colour is, as WCAG 2 defines it, from its parts. */
function luminance(parts) {
  const [r, g, b] = parts.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Contrast of two colours, from their parts: 1 .. 21. */
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The parts of a tone that is painted with this opacity on a panel. */
function painted(tone, opacity) {
  const behind = partsOf(tones.panel);
  return partsOf(tones[tone]).map((part, at) => opacity * part + (1 - opacity) * behind[at]);
}

/** Black or white, whichever is read more easily on a tone of this opacity on a panel. */
function readableOn(tone, opacity = 1) {
  const ground = painted(tone, opacity);
  const onBlack = contrast(partsOf(NEARLY_BLACK), ground);
  return onBlack > contrast(partsOf(WHITE), ground) ? NEARLY_BLACK : WHITE;
}

function setTheme(name) {
  root.dataset.theme = name;
  readTones();
  for (const redraw of onTheme) redraw();
}

function remembered() {
  try {
    return localStorage.getItem("latecomer-theme");
  } catch {
    return null;
  }
}

function themeButton() {
  const button = el("button", { type: "button", id: "theme" });
  const name = () => {
    const other = root.dataset.theme === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "◐ Dark" : "◑ Light";
    button.setAttribute("aria-label", `Use the ${other} theme`);
  };
  button.addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    try {
      localStorage.setItem("latecomer-theme", root.dataset.theme);
    } catch {
      /* a private window */
    }
    name();
  });
  dark.addEventListener("change", () => {
    if (!remembered()) {
      setTheme(dark.matches ? "dark" : "light");
      name();
    }
  });
  name();
  return button;
}

setTheme(remembered() ?? (dark.matches ? "dark" : "light"));

// The tip: one element that follows the pointer.
const tip = document.getElementById("tip");
function showTip(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${clamp(event.clientX + 14, 6, innerWidth - width - 6)}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

const ICONS = {
  play: "M3 1.5v13l11-6.5z",
  pause: "M3 2h3.6v12H3zM9.4 2H13v12H9.4z",
  back: "M12 2v12L4 8zM2.5 2h1.6v12H2.5z",
  on: "M4 2v12l8-6zM11.9 2h1.6v12h-1.6z",
  first: "M8.5 2v12L1.5 8zM15 2v12L8 8z",
  last: "M7.5 2v12l7-6zM1 2v12l7-6z",
  fault: "M8 1l7.5 13.5H.5zM7.2 6v4.4h1.6V6zm0 5.4V13h1.6v-1.6z",
};

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"),
    path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  path.setAttribute("fill-rule", "evenodd");
  svg.append(path);
  return svg;
}

/** A panel with a heading, a note beside it, and a body. */
function panel(title, note, body, { id = null } = {}) {
  const remark = el("span", { class: "note" }, note);
  const made = el(
    "section",
    { class: "panel", id, "aria-label": title },
    el("div", { class: "bar" }, el("h2", {}, title), remark),
    body,
  );
  return { element: made, note: remark };
}

/**
 * A legend: [tone, text, shape]. A shape is drawn as in the picture: "line", "dashed" (line), "area"
 * (below a line), "box" (outline), "dashed-box"; a filled square where none is given.
 */
function legend(entries) {
  return el(
    "ul",
    { class: "legend" },
    entries.map(([tone, text, shape]) =>
      el(
        "li",
        {},
        el("i", {
          class: shape ?? false,
          style: { "--tone": tone.startsWith("#") ? tone : `var(--${tone})` },
        }),
        text,
      ),
    ),
  );
}

function announce(text) {
  document.getElementById("live").textContent = text;
}

function guide(entries) {
  return el(
    "span",
    { class: "hint" },
    entries.flatMap(([key, text]) => [el("kbd", {}, key), ` ${text}  `]),
  );
}
