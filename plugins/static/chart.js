// Lines over time, as SVG: a crosshair tells the values where the pointer is.

import { s, h } from "./dom.js";
import { clock, day, minute, span } from "./format.js";

export const LEFT = 58;
export const RIGHT = 8;
const TOP = 8;
const BOTTOM = 24;
const CLOSE_PX = 8;
const STEPS_MS = [50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 20e3, 30e3, 60e3, 120e3, 300e3, 600e3, 1200e3, 1800e3, 3600e3, 7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 432000e3, 864000e3];
const TIMES_MS = [60e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3, 2592000e3];

/** Even steps for an axis through `most`, at most `atMost`; `isTime`: of milliseconds. */
export function steps(most, atMost = 4, isTime = true) {
  const step = (isTime && STEPS_MS.find((each) => most / each <= atMost)) || niceStep(most / atMost);
  const count = Math.max(1, Math.ceil(most / step));
  return Array.from({ length: count + 1 }, (_, n) => n * step);
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => power * factor >= least);
}

/** Round moments between two, at most so many. */
export function moments(from, to, atMost) {
  const step = TIMES_MS.find((each) => (to - from) / each <= atMost) ?? TIMES_MS.at(-1) * Math.ceil((to - from) / TIMES_MS.at(-1) / atMost);
  const zone = new Date(to).getTimezoneOffset() * 60_000;
  const first = Math.ceil((from - zone) / step) * step + zone;
  const found = [];
  for (let at = first; at <= to; at += step) found.push({ at, text: label(at, step) });
  return found;
}

function label(at, step) {
  const time = new Date(at);
  const isMidnight = !time.getHours() && !time.getMinutes();
  return step >= 86400e3 || isMidnight ? day(at) : minute(at);
}

/**
 * A chart of lines. `lines`: [{name, kind, values: [[ms, value or null], …]}], ascending; `gapMs`: two points further
 * apart than this aren't joined; `shown` gives a value its text. `marks`: [{kind, at, to, text}], what happened when.
 */
export function lineChart({ id, width, height, from, to, lines: all, gapMs, shown = span, marks = [] }) {
  const lines = all.map((line) => ({ ...line, values: line.values.filter(([at]) => at >= from) }));
  const most = Math.max(1, ...lines.flatMap((line) => line.values.map(([, value]) => value ?? 0)));
  const ticks = steps(most, height < 150 ? 2 : 4, shown === span);
  const x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - (value / ticks.at(-1)) * (height - TOP - BOTTOM);
  const svg = s(
    "svg",
    { id, class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(lines, shown) },
    ticks.filter((tick, n) => !n || shown(tick) !== shown(ticks[n - 1])).map((tick) => [
      s("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      s("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, shown(tick)),
    ]),
    moments(from, to, Math.max(2, Math.floor(width / 110))).map(({ at, text }) =>
      s("text", { x: x(at), y: height - 6, "text-anchor": x(at) > width - 32 ? "end" : "middle" }, text),
    ),
    lines.map((line) => [
      line.filled && s("path", { class: `area ${line.kind}`, d: area(line.values, gapMs, x, y) }),
      s("path", { class: `line ${line.kind}`, d: path(line.values, gapMs, x, y) }),
    ]),
    joined(marks.filter((mark) => mark.to >= from && mark.at <= to), x).map((mark) => markOf(mark, (at) => x(Math.min(Math.max(at, from), to)), height)),
    s("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" }),
  );
  const tip = h("div", { class: "tip", hidden: true });
  const figure = h("figure", { id: `${id}-figure`, class: "figure" }, svg, tip);
  figure.onpointermove = (event) => point(event, { lines, x, from, to, width, shown });
  figure.onpointerleave = (event) => hide(event.currentTarget);
  return figure;
}

/** Marks of which those of moments that would touch each other are one: together they would hide the lines. */
function joined(marks, x) {
  const found = marks.filter((mark) => mark.kind === "job");
  const others = marks.filter((mark) => mark.kind !== "job").sort((a, b) => a.at - b.at);
  for (const [n, mark] of others.entries()) {
    const last = n && found.at(-1);
    if (last && last.kind === mark.kind && x(mark.at) - x(last.to) < CLOSE_PX) found[found.length - 1] = { ...last, to: mark.to, times: (last.times ?? 1) + 1 };
    else found.push(mark);
  }
  return found;
}

// What happened at a moment is a line through the chart, what lasted a bar on its axis, and many moments a bar above.
const markOf = ({ kind, at, to, text, times }, x, height) =>
  times
    ? s("rect", { class: `mark many ${kind}`, x: x(at), y: TOP, width: Math.max(3, x(to) - x(at)), height: 4, rx: 2 }, s("title", {}, `${times} times: ${text} at ${clock(at)} … ${clock(to)}`))
    : kind === "job"
    ? s("rect", { class: "mark job", x: x(at), y: height - BOTTOM - 2, width: Math.max(3, x(to) - x(at)), height: 4, rx: 2 }, s("title", {}, `${text}, from ${clock(at)}`))
    : s("path", { class: `mark ${kind}`, d: `M${x(at)},${TOP}V${height - BOTTOM}` }, s("title", {}, `${text} at ${clock(at)}`));

function stretches(values, gapMs) {
  const found = [];
  let last = null;
  for (const [at, value] of values) {
    if (value === null) last = null;
    else {
      if (last === null || at - last > gapMs) found.push([]);
      found.at(-1).push([at, value]);
      last = at;
    }
  }
  return found;
}

const path = (values, gapMs, x, y) =>
  stretches(values, gapMs)
    .map((part) => `M${part.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L")}${part.length === 1 ? "h1" : ""}`)
    .join("");

const area = (values, gapMs, x, y) =>
  stretches(values, gapMs)
    .map((part) => {
      const line = part.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
      return `M${x(part[0][0]).toFixed(1)},${y(0)}L${line}L${x(part.at(-1)[0]).toFixed(1)},${y(0)}Z`;
    })
    .join("");

function describe(lines, shown) {
  return lines
    .map((line) => {
      const known = line.values.map(([, value]) => value).filter((value) => value !== null);
      return known.length ? `${line.name}: now ${shown(known.at(-1))}, at most ${shown(Math.max(...known))}` : `${line.name}: unknown`;
    })
    .join("; ");
}

function point(event, { lines, x, from, to, width, shown }) {
  const figure = event.currentTarget;
  const [svg, tip] = [figure.querySelector("svg"), figure.querySelector(".tip")];
  const at = from + ((event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * (to - from);
  const near = lines.map((line) => [line, nearest(line.values, at)]).filter(([, found]) => found);
  const cross = svg.querySelector(".cross");
  if (!near.length) {
    hide(figure);
    return;
  }
  const moment = near[0][1][0];
  cross.setAttribute("visibility", "visible");
  for (const end of ["x1", "x2"]) cross.setAttribute(end, x(moment));
  tip.hidden = false;
  tip.replaceChildren(
    h("strong", {}, clock(moment)),
    ...near.map(([line, [, value]]) => h("span", { class: `key ${line.kind}` }, `${line.name} `, h("b", {}, shown(value)))),
  );
  const right = x(moment) > width / 2;
  tip.style.left = right ? "" : `${x(moment) + 12}px`;
  tip.style.right = right ? `${width - x(moment) + 12}px` : "";
}

function hide(figure) {
  figure.querySelector(".tip").hidden = true;
  figure.querySelector(".cross").setAttribute("visibility", "hidden");
}

function nearest(values, at) {
  let best = null;
  for (const each of values) {
    if (each[1] !== null && (best === null || Math.abs(each[0] - at) < Math.abs(best[0] - at))) best = each;
  }
  return best;
}
