// A job's past as a picture: its states as a band, what was done as a line below it; and in words, with who ordered what.

import { LEFT, RIGHT, lineChart } from "./chart.js";
import { h, s } from "./dom.js";
import { clock, count, many, size, span } from "./format.js";
import { card, kindOf, pill, when } from "./parts.js";
import { plain } from "./values.js";

const BAND = { top: 20, thick: 22 };
const BAND_HEIGHT = BAND.top + BAND.thick + 4;
const SHOWN = 100;
const ORDERS = { "pause-job": "ordered to pause", "resume-job": "ordered to resume", "cancel-job": "ordered to cancel" };

/** The card of a job's time line, so wide; `now` is Unix ms. */
export function timeLine({ events, spans, points }, { width, now, isOver }) {
  const from = spans[0].from_ms;
  const end = isOver ? spans.at(-1).from_ms : now;
  const to = Math.max(end, from + 1000);
  const shown = (isOver ? spans.slice(0, -1) : spans).map((each) => ({ ...each, to_ms: each.to_ms ?? to }));
  const known = points.filter((point) => point.percent !== null);
  return card(
    { id: "timeline" },
    h("h2", {}, "Time line"),
    h("div", { class: "row" }, legend(shown)),
    band({ spans: shown, events, from, to, width }),
    known.length > 1
      ? chart("Done", known.map((point) => [point.at_ms, point.percent]), (value) => `${Math.round(value)} %`, { from, to, width })
      : points.length > 1 && chart("Rows", points.map((point) => [point.at_ms, point.rows]), count, { from, to, width }),
    points.length > 1 && h("p", { class: "quiet small" }, "What was done is known where a process began and where it stands or ended; the line between is straight."),
    happened(events),
    points.length > 1 && figures(points),
  );
}

// How long it was in which state, in the order of their first times.
function totals(spans) {
  const found = new Map();
  for (const { state, from_ms, to_ms } of spans) found.set(state, (found.get(state) ?? 0) + to_ms - from_ms);
  return [...found];
}

const inWords = (spans) => totals(spans).map(([state, ms]) => `${state} ${span(ms)}`).join(", ");

const legend = (spans) => totals(spans).map(([state, ms]) => pill(state, `${state} ${span(ms)}`));

function band({ spans, events, from, to, width }) {
  const x = (at) => LEFT + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * (width - LEFT - RIGHT);
  return s(
    "svg",
    { id: "band", class: "chart band", width, height: BAND_HEIGHT, viewBox: `0 0 ${width} ${BAND_HEIGHT}`, role: "img", "aria-label": `States over time: ${inWords(spans)}` },
    spans.map((each) => {
      const text = `${each.state} for ${span(each.to_ms - each.from_ms)}, from ${clock(each.from_ms)}`;
      return s("rect", { class: `span ${kindOf(each.state)}`, x: x(each.from_ms), y: BAND.top, width: Math.max(1.5, x(each.to_ms) - x(each.from_ms)), height: BAND.thick }, s("title", {}, text));
    }),
    events.filter(isOrder).map((event) =>
      s("path", { class: "order", d: `M${x(event.at_ms)},${BAND.top - 2}l5,-7l-5,-7l-5,7z` }, s("title", {}, `${event.by}: ${ORDERS[event.what] ?? event.what}, ${clock(event.at_ms)}`)),
    ),
    events.filter((event) => event.what === "failed").map((event) =>
      s("path", { class: "failure", d: `M${x(event.at_ms) - 5},${BAND.top - 14}l10,10m0,-10l-10,10` }, s("title", {}, `failed, ${clock(event.at_ms)}: ${event.message}`)),
    ),
  );
}

const isOrder = ({ what }) => what === "pausing" || what === "cancelling" || what in ORDERS;

const chart = (name, values, shown, { from, to, width }) =>
  h("div", { class: "chart-part", id: "done-part" }, h("h3", {}, name), lineChart({ id: "done-chart", width, height: 120, from, to, lines: [{ name, kind: "one", filled: true, values }], gapMs: Infinity, shown }));

// The newest first, as that is what one looks for.
function happened(events) {
  const newest = [...events].reverse();
  return [
    h("h3", {}, "What happened"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "What happened" },
      h(
        "table",
        { class: "table tight", id: "happened" },
        h("thead", {}, h("tr", {}, h("th", {}, "When"), h("th", {}, "What"), h("th", {}, "By"), h("th", { class: "number" }, "Run"), h("th", {}, "Message"))),
        h("tbody", {}, newest.slice(0, SHOWN).map(eventRow)),
      ),
    ),
    newest.length > SHOWN && h("p", { class: "quiet" }, `${many(newest.length - SHOWN, "older event")} not shown.`),
  ];
}

const eventRow = (event) =>
  h(
    "tr",
    {},
    h("td", { class: "nowrap" }, when(event.at_ms)),
    h("td", {}, event.what in ORDERS ? ORDERS[event.what] : pill(event.what)),
    h("td", {}, plain(event.by)),
    h("td", { class: "number" }, event.run > 0 && count(event.run)),
    h("td", {}, plain(event.message), event.hint && h("div", { class: "quiet" }, "Hint: ", plain(event.hint))),
  );

const figures = (points) =>
  h(
    "details",
    { id: "figures" },
    h("summary", {}, "The figures of the line"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "The figures of the line" },
      h(
        "table",
        { class: "table tight" },
        h("thead", {}, h("tr", {}, ["When", "Done", "Rows", "Read", "Chunks"].map((text, n) => h("th", { class: n ? "number" : "" }, text)))),
        h(
          "tbody",
          {},
          points.map((point) =>
            h(
              "tr",
              {},
              h("td", { class: "nowrap" }, when(point.at_ms)),
              [point.percent === null ? "–" : `${point.percent} %`, count(point.rows), size(point.bytes), count(point.chunks)].map((text) => h("td", { class: "number" }, text)),
            ),
          ),
        ),
      ),
    ),
  );
