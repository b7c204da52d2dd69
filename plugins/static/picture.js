// The way of the data as a picture: what each part does now stands in it, and what flows between them moves.

import { s } from "./dom.js";
import { many, rate, size, span } from "./format.js";
import { kindOf } from "./parts.js";

const WIDE = 760;
const ASKED = [["pumps", "upstream"], ["landing", "relay"], ["relay", "relay"], ["downstream", "downstream"], ["archive", "archive"]];
const BOX = { width: 216, height: 104 };

/** The picture for a page that is so wide; on a narrow one it runs from top to bottom. */
export function picture(now, width) {
  const parts = partsOf(now);
  for (const [name, who] of ASKED) if (parts[name].state === "unknown" && !now.errors[who]) parts[name].state = "asked";
  return width >= WIDE ? across(parts) : down(parts);
}

function partsOf({ pumps, landing, relay, archive, downstream, errors, as_of_ms }) {
  const worst = ["unknown", "stopped", "waits", "paused", "works", "idle"].find((state) => pumps.some((pump) => pump.state === state));
  const behind = pumps.length ? Math.max(...pumps.filter((pump) => pump.state !== "idle").map((pump) => pump.lag_ms), 0) : null;
  return {
    pumps: {
      title: "Pumps",
      state: errors.upstream || !as_of_ms.upstream ? "unknown" : (worst ?? "idle"),
      value: pumps.length || as_of_ms.upstream ? many(pumps.length, "pump") : "–",
      more: behind === null ? "keep what TiDB commits" : behind ? `at most ${span(behind)} behind` : "not behind",
    },
    landing: { title: "Landing", state: landing.state, value: span(landing.lag_ms), more: landing.lag_ms === null ? (landing.state === "unknown" ? "not known" : "nothing landed yet") : "behind the clock" },
    relay: { title: "Relay log", state: relay.state, value: size(relay.bytes), more: relay.waiting_ms === null ? "windows, in order" : `${span(relay.waiting_ms)} not applied` },
    downstream: { title: "Downstream", state: downstream.state, value: span(downstream.lag_ms), more: downstream.lag_ms === null ? (downstream.state === "unknown" ? "not known" : "no checkpoint yet") : "behind the clock" },
    archive: {
      title: "Archive",
      state: archive.state,
      value: archive.hi && archive.hi !== 0 ? size(archive.bytes) : "–",
      more: archive.hi && archive.hi !== 0 ? `${many(archive.snapshots, "snapshot")}, ${span(archive.lag_ms)} behind` : archive.state === "unknown" ? "not known" : "nothing archived yet",
    },
    landed: { rate: landing.changes_per_s, on: landing.state === "works" },
    applied: { rate: downstream.changes_per_s, on: downstream.state === "works" },
    kept: { rate: 0, on: archive.state === "works" },
  };
}

function across(parts) {
  const [top, gap] = [10, 66];
  const x = (n) => 2 + n * (BOX.width + gap);
  const width = x(3) + BOX.width + 2;
  const middle = top + BOX.height / 2;
  const below = top + BOX.height + 46;
  const order = ["pumps", "landing", "relay", "downstream"];
  const flows = [parts.landed, parts.landed, parts.applied];
  return s(
    "svg",
    { id: "picture", class: "picture", viewBox: `0 0 ${width} ${below + BOX.height + 4}`, role: "img", "aria-label": inWords(parts) },
    flows.map((flow, n) => [
      stream(`M${x(n) + BOX.width + 6},${middle}H${x(n + 1) - 8}`, flow),
      n > 0 && s("text", { class: "rate", x: x(n) + BOX.width + gap / 2, y: middle - 12, "text-anchor": "middle" }, flow.rate ? rate(flow.rate) : ""),
    ]),
    stream(`M${x(2) + BOX.width / 2},${top + BOX.height + 6}V${below - 8}`, parts.kept),
    order.map((name, n) => box(parts[name], x(n), top)),
    box(parts.archive, x(2), below),
  );
}

function down(parts) {
  const gap = 44;
  const [width, left] = [320, 52];
  const y = (n) => 6 + n * (BOX.height + gap);
  const order = ["pumps", "landing", "relay", "downstream"];
  const flows = [parts.landed, parts.landed, parts.applied];
  const middle = left + BOX.width / 2;
  return s(
    "svg",
    { id: "picture", class: "picture narrow", viewBox: `0 0 ${width} ${y(5) - gap + 8}`, role: "img", "aria-label": inWords(parts) },
    flows.map((flow, n) => [
      stream(`M${middle},${y(n) + BOX.height + 5}V${y(n + 1) - 7}`, flow),
      n > 0 && s("text", { class: "rate", x: middle + 12, y: y(n) + BOX.height + gap / 2 + 4 }, flow.rate ? rate(flow.rate, "changes") : ""),
    ]),
    stream(`M${left + BOX.width + 4},${y(2) + BOX.height / 2}H${width - 22}V${y(4) + BOX.height / 2}H${left + BOX.width + 8}`, parts.kept),
    order.map((name, n) => box(parts[name], left, y(n))),
    box(parts.archive, left, y(4)),
  );
}

function box(part, x, y) {
  return s(
    "g",
    { class: `part ${kindOf(part.state)}`, transform: `translate(${x} ${y})` },
    s("rect", { width: BOX.width, height: BOX.height, rx: 12 }),
    s("circle", { cx: 20, cy: 24, r: 4.5 }),
    s("text", { class: "title", x: 33, y: 28.5 }, part.title),
    s("text", { class: "word", x: BOX.width - 14, y: 28.5, "text-anchor": "end" }, part.state === "unknown" ? "silent" : part.state),
    s("text", { class: "value", x: 16, y: 66 }, part.value),
    s("text", { class: "more", x: 16, y: 88 }, part.more),
  );
}

// The faster it flows, the faster it moves: by orders of magnitude, as rates differ.
function stream(d, { rate: perSecond, on }) {
  const seconds = Math.max(0.35, 2.4 - 0.4 * Math.log10(1 + perSecond));
  return s(
    "g",
    { class: `stream ${on ? "on" : ""}` },
    s("path", { class: "bed", d }),
    s("path", { class: "flow", d, style: { "animation-duration": `${seconds.toFixed(2)}s` } }),
  );
}

const inWords = (parts) =>
  ["pumps", "landing", "relay", "archive", "downstream"].map((name) => `${parts[name].title}: ${parts[name].state}, ${parts[name].value}, ${parts[name].more}`).join("; ");
