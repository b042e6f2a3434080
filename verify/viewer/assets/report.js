// The head of the page: verdict, properties, bound, counterexamples.

function gauge(bound) {
  // Exact texts, where the numbers are rounded: two that differ must not look alike.
  const [value, least] = bound.texts ?? [shown(bound.value), shown(bound.bound)];
  const most = Math.max(bound.value, bound.bound, 1),
    share = (value) => `${(100 * value) / (most * 1.04)}%`;
  const right =
    bound.bound / most > 0.6
      ? { right: `calc(100% - ${share(bound.bound)})` }
      : { left: share(bound.bound) };
  const under =
    bound.value / most > 0.6 ? { right: `calc(100% - ${share(bound.value)})` } : { left: "0" };
  return el(
    "div",
    {
      class: "gauge",
      role: "img",
      "aria-label": `${value} ${bound.of}, lower bound ${least}`,
    },
    el("i", { style: { width: share(bound.value) } }),
    el("b", { style: { left: share(bound.bound) } }),
    el("span", { class: "above", style: right }, `lower bound ${least}`),
    el("span", { class: "below", style: under }, `${value} ${bound.of}`),
  );
}

function boundPanel(bound) {
  const rows = bound.terms.map(({ name, value, text: why, decides }) =>
    el(
      "tr",
      { class: decides ? "decides" : false },
      el("td", {}, name),
      el("td", {}, shown(value)),
      el("td", {}, why),
    ),
  );
  return el(
    "section",
    { class: "panel", id: "bound", "aria-label": "Lower bound" },
    el("h2", {}, bound.text),
    gauge(bound),
    rows.length ? el("table", { class: "terms" }, rows) : "",
    facts(),
  );
}

function propertiesPanel() {
  const proved = model.properties.filter((property) => property.verdict === "proved").length;
  return el(
    "section",
    { class: "panel", id: "properties", "aria-label": "Properties" },
    el(
      "h2",
      {},
      `${proved} of ${plural(model.properties.length, "property", "properties")} proved`,
    ),
    el(
      "ul",
      { class: "props" },
      model.properties.map(({ name, verdict, meaning }) =>
        el(
          "li",
          { class: `prop ${verdict}`, title: `${verdict}: ${meaning}` },
          name,
          el("span", { class: "quiet" }, `: ${verdict}; ${meaning}`),
        ),
      ),
    ),
    model.bound ? "" : facts(),
  );
}

function facts() {
  const notes = model.properties.filter(({ note }) => note).map(({ name, note }) => [name, note]);
  return [...model.facts, ...notes].map(([name, value]) =>
    el("p", { class: "notes" }, el("b", {}, name), ` ${value}`),
  );
}

/** `jump(fault, line)` shows where it is; line -1 is the fault itself. */
function faultPanel(fault, jump) {
  const found = jump && (fault.faulty.length || Number.isInteger(fault.chunk));
  return el(
    "section",
    { class: "panel fault", "aria-label": `Counterexample to ${fault.property}` },
    el(
      "div",
      { class: "bar" },
      el("h2", {}, `${fault.property} fails`),
      el("span", { class: "note" }, fault.place),
      el("span", { class: "spacer" }),
      found
        ? el(
            "button",
            { type: "button", class: "hot jump", onclick: () => jump(fault, -1) },
            "Show where",
          )
        : "",
    ),
    el(
      "dl",
      {},
      el("dt", {}, "expected"),
      el("dd", {}, fault.expected),
      el("dt", {}, "found"),
      el("dd", {}, fault.found),
    ),
    el(
      "ol",
      {},
      fault.lines.map((line, index) =>
        el(
          "li",
          {},
          found
            ? el(
                "button",
                { type: "button", class: "link", onclick: () => jump(fault, index) },
                line,
              )
            : line,
        ),
      ),
    ),
  );
}

function buildHead({ jump = null, extra = [] } = {}) {
  const label = model.verdict;
  document.getElementById("head").replaceChildren(
    el(
      "div",
      { class: "title" },
      el("h1", {}, model.title),
      label ? el("span", { class: `badge ${label}` }, label) : "",
      el("span", { class: "spacer" }),
      themeButton(),
    ),
    el("p", { class: "headline" }, model.headline),
    model.cut ? el("p", { class: "cut", role: "note" }, model.cut) : "",
    ...model.faults.slice(0, 1).map((fault) => faultPanel(fault, jump)),
    model.faults.length > 1
      ? el(
          "details",
          {},
          el(
            "summary",
            {},
            `${plural(model.faults.length - 1, "more property fails", "more properties fail")}: ${model.faults
              .slice(1)
              .map(({ property }) => property)
              .join(", ")}`,
          ),
          ...model.faults.slice(1).map((fault) => faultPanel(fault, jump)),
        )
      : "",
    model.properties?.length || model.bound
      ? el(
          "div",
          { class: "facts" },
          model.bound ? boundPanel(model.bound) : "",
          model.properties.length ? propertiesPanel() : "",
          ...extra,
        )
      : "",
  );
}
