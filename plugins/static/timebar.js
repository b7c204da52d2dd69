// The bar of Time: which moments can be restored, where that has holes, and what a restore would begin with.

import { moments } from "./chart.js";
import { h, s } from "./dom.js";
import { moment, span, tsoMs } from "./format.js";

const [TOP, THICK, HEIGHT] = [30, 34, 96];

/** `from`, `to`: what is shown, in Unix ms; `at`: the chosen moment, or null; `choose` is called with another one. */
export function timeBar({ found, from, to, at, width, choose }) {
  const x = (ms) => ((Math.min(Math.max(ms, from), to) - from) / (to - from)) * width;
  const inside = (ms) => ms >= from && ms <= to;
  const piece = (kind, lo, hi, title) => {
    const left = x(lo);
    const wide = Math.max(kind === "hole" ? 3 : 0, x(hi) - left);
    return hi > from && lo < to && wide > 0 ? s("rect", { class: `piece ${kind}`, x: left, y: TOP, width: wide, height: THICK }, s("title", {}, title)) : null;
  };
  const [lo, hi, landed] = [found.lo, found.hi, found.landed_ts].map(tsoMs);
  const svg = s(
    "svg",
    { id: "time-bar", class: "timebar", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": inWords(found) },
    s("defs", {}, s("clipPath", { id: "time-clip" }, s("rect", { x: 0, y: TOP, width, height: THICK, rx: 7 }))),
    s(
      "g",
      { "clip-path": "url(#time-clip)" },
      s("rect", { class: "piece nothing", x: 0, y: TOP, width, height: THICK }),
      piece("part", lo, hi, "Tables that were there all the time since, or were made since, can be restored"),
      wholes(found).map(([since, until]) => piece("whole", since, until, "Every table can be restored")),
      piece("landed", hi, landed, "Landed, and not archived yet"),
      found.holes.map((hole) => piece("hole", tsoMs(hole.lo), tsoMs(hole.hi), `Missing: ${hole.why}`)),
    ),
    found.snapshots.filter((snapshot) => inside(tsoMs(snapshot.ts))).map((snapshot) =>
      s("path", { class: "snapshot", d: `M${x(tsoMs(snapshot.ts))},${TOP - 3}l6,-7l-6,-7l-6,7z` }, s("title", {}, `Snapshot of ${moment(tsoMs(snapshot.ts))}`)),
    ),
    found.drills.filter((drill) => drill.ts && inside(tsoMs(drill.ts))).map((drill) =>
      s("circle", { class: `drill ${drill.state}`, cx: x(tsoMs(drill.ts)), cy: TOP + THICK + 9, r: 4 }, s("title", {}, `Drill as of ${moment(tsoMs(drill.ts))}: ${drill.state}`)),
    ),
    moments(from, to, Math.max(2, Math.floor(width / 110))).map((each) => s("text", { x: x(each.at), y: HEIGHT - 6, "text-anchor": anchor(x(each.at), width) }, each.text)),
    at !== null && inside(at) && s("path", { class: "chosen", d: `M${x(at)},${TOP - 8}V${TOP + THICK + 8}` }),
    s("path", { class: "pointer", d: `M0,${TOP}v${THICK}`, visibility: "hidden" }),
  );
  const tip = h("div", { class: "tip", hidden: true });
  const figure = h("figure", { id: "time-figure", class: "figure" }, svg, tip);
  const there = (event) => from + ((event.clientX - event.currentTarget.getBoundingClientRect().left) / width) * (to - from);
  figure.onclick = (event) => choose(Math.round(there(event)));
  figure.onpointermove = (event) => point(event.currentTarget, there(event), { found, x, width });
  figure.onpointerleave = (event) => {
    event.currentTarget.querySelector(".tip").hidden = true;
    event.currentTarget.querySelector(".pointer").setAttribute("visibility", "hidden");
  };
  return figure;
}

// A label at an end stays inside.
const anchor = (x, width) => (x < 32 ? "start" : x > width - 32 ? "end" : "middle");

function point(figure, ms, { found, x, width }) {
  const tip = figure.querySelector(".tip");
  const pointer = figure.querySelector(".pointer");
  pointer.setAttribute("visibility", "visible");
  pointer.setAttribute("d", `M${x(ms)},${TOP}v${THICK}`);
  tip.hidden = false;
  tip.replaceChildren(h("strong", {}, moment(ms)), h("span", { class: "quiet" }, stateAt(found, ms)));
  const right = x(ms) > width / 2;
  tip.style.left = right ? "" : `${x(ms) + 10}px`;
  tip.style.right = right ? `${width - x(ms) + 10}px` : "";
}

// The moments at which a restore of all tables is accepted.
const wholes = ({ restorable }) => (restorable ?? []).map((range) => [tsoMs(range.from_ts), tsoMs(range.until_ts)]);

function stateAt(found, ms) {
  const [lo, hi, landed] = [found.lo, found.hi, found.landed_ts].map(tsoMs);
  const hole = found.holes.find((each) => ms > tsoMs(each.lo) && ms <= tsoMs(each.hi));
  if (hole) return "missing";
  if (ms > landed) return "not landed yet";
  if (ms > hi) return "landed, not archived yet";
  if (wholes(found).some(([since, until]) => ms >= since && ms <= until)) return "every table";
  return ms >= lo ? "some tables" : "nothing is kept";
}

/** What a restore as of this moment begins with, in a sentence. */
export function lineAt(found, ms) {
  const state = stateAt(found, ms);
  const before = found.snapshots.map((snapshot) => tsoMs(snapshot.ts)).filter((ts) => ts <= ms);
  const snapshot = before.length ? Math.max(...before) : null;
  const begins = snapshot === null ? "no snapshot lies before it" : snapshot === ms ? "a snapshot is exactly there" : `a restore begins with the snapshot of ${moment(snapshot)}, and applies ${span(ms - snapshot)} of changes`;
  return `${moment(ms)}: ${state}; ${begins}.`;
}

function inWords(found) {
  const whole = tsoMs(found.whole_from_ts);
  return whole ? `Every table can be restored from ${moment(whole)} to ${moment(tsoMs(found.hi))}, with ${found.holes.length} holes` : "Not every table can be restored now";
}
