// Numbers, sizes, times and names, as people read them.

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

export const count = (value) => (value === null || value === undefined ? "–" : number.format(value));

export const many = (value, one, several = `${one}s`) => `${count(value)} ${value === 1 ? one : several}`;

/** 12,345,678 bytes as 12.3 MB. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < SIZES.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit && value < 99.95 ? value.toFixed(1) : number.format(value)} ${SIZES[unit]}`;
}

export function rate(perSecond, unit = "") {
  if (perSecond === null || perSecond === undefined) return "–";
  const shown = perSecond >= 10 || perSecond === 0 ? number.format(perSecond) : perSecond.toFixed(1);
  return `${shown}${unit && ` ${unit}`}/s`;
}

/** Milliseconds as a span: 340 ms, 2.4 s, 12 min, 3 h 20 min, 5 d. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0";
  if (ms < 0) return `−${span(-ms)}`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 90_000) return `${Math.round(ms / 1000)} s`;
  const minutes = Math.round(ms / 60_000);
  if (minutes < 90) return `${minutes} min`;
  const [hours, left] = [Math.floor(minutes / 60), minutes % 60];
  if (hours < 36) return left ? `${hours} h ${left} min` : `${hours} h`;
  return `${Math.round(minutes / 1440)} d`;
}

// Dates and times as the browser's first language writes them, in its time zone.
const written = (options) => new Intl.DateTimeFormat(navigator.languages, options);
const MOMENT = written({ dateStyle: "medium", timeStyle: "medium" });
const TIME = written({ timeStyle: "medium" });
const DAY = written({ month: "short", day: "numeric" });
const MINUTE = written({ hour: "numeric", minute: "2-digit" });
const OFFSET = written({ timeZoneName: "longOffset" });

/** A moment, as 22.11.2026, 14:03:20 or Nov 22, 2026, 2:03:20 PM. */
export const moment = (ms) => (ms ? MOMENT.format(ms) : "–");

/** The same with its milliseconds: what stands before them, they, and what stands behind. */
export function momentParts(ms) {
  const parts = MOMENT.formatToParts(ms);
  const seconds = parts.findLastIndex(({ type }) => type === "second") + 1;
  const text = (some) => some.map(({ value }) => value).join("");
  return [text(parts.slice(0, seconds)), `.${String(ms % 1000).padStart(3, "0")}`, text(parts.slice(seconds))];
}

/** The day of a moment, without its year. */
export const day = (ms) => DAY.format(ms);

/** The hour and minute of a moment. */
export const minute = (ms) => MINUTE.format(ms);

/** Only the time if it was today. */
export const clock = (ms) => (ms && new Date(ms).toDateString() === new Date().toDateString() ? TIME.format(ms) : moment(ms));

/** A moment in UTC, as 2026-11-22 13:03:20.123 UTC. */
export const utc = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");

/** The time zone of all moments that are shown, as Europe/Berlin, now GMT+01:00; and where UTC is. */
export function zone() {
  const { timeZone } = OFFSET.resolvedOptions();
  const { value } = OFFSET.formatToParts(Date.now()).find(({ type }) => type === "timeZoneName");
  return timeZone === "UTC" ? timeZone : `${timeZone}, now ${value}; under the pointer in UTC`;
}

export function ago(ms) {
  if (!ms) return "never";
  const past = Date.now() - ms;
  if (past < 0) return clock(ms);
  return past < 2000 ? "just now" : `${span(past)} ago`;
}

/** A moment as Sluice's forms and commands take it: 2026-11-22T14:03:20.123+01:00. */
export function iso(ms) {
  const at = new Date(ms);
  const zone = -at.getTimezoneOffset();
  const local = new Date(ms + zone * 60_000).toISOString().slice(0, 23);
  const off = Math.abs(zone);
  return `${local}${zone < 0 ? "-" : "+"}${two(Math.floor(off / 60))}:${two(off % 60)}`;
}

/** The Unix ms of a TSO, which comes as a text: it has more digits than a number keeps. */
export const tsoMs = (tso) => Number(BigInt(tso) >> 18n);

function two(value) {
  return String(value).padStart(2, "0");
}
