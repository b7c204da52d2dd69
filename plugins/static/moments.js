// Moments as people type them: what Sluice is asked for, and where on a bar they lie.

import { tsoMs } from "./format.js";

const WITHOUT_ZONE = /^(\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?|(today|yesterday)([\s,]+\d\d:\d\d(:\d\d)?)?)$/i;
const AGO = /^(\d+\s*[smhdw][a-z]*\s*)+(ago)?$/;
const MS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

/** The browser's time zone, as Europe/Berlin: a time without one is a time there. */
export const zoneName = () => new Intl.DateTimeFormat().resolvedOptions().timeZone;

/** What Sluice is asked for: what was typed, with the browser's zone if it is a time without one. */
export function asked(text) {
  const typed = normal(text);
  return WITHOUT_ZONE.test(typed) ? `${typed} ${zoneName()}` : typed;
}

const normal = (text) => asShown(text.replaceAll("\u202f", " ").trim()).replace(/(^|[\sT])(\d:\d\d)/, "$10$2");

// A time as the pages write it in English or German, such as `Nov 21, 2026, 9:23:49 AM`, or without its day.
function asShown(typed) {
  if (/^\d{1,2}:\d\d(:\d\d)?$/.test(typed)) return `today ${typed}`;
  const german = /^(\d{1,2})\.(\d{1,2})\.(\d{4}),?\s+(\d{1,2}:\d\d(?::\d\d)?)$/.exec(typed);
  if (german) return `${german[3]}-${german[2].padStart(2, "0")}-${german[1].padStart(2, "0")} ${german[4]}`;
  if (!/^[A-Z][a-z]{2} \d{1,2}, \d{4}/.test(typed)) return typed;
  const at = new Date(typed.replace(/(\d)\.\d+/, "$1"));
  return Number.isNaN(at.getTime()) ? typed : new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19).replace("T", " ");
}

/** The Unix ms of a typed moment; null for none, and where only Sluice can tell. */
export function msOf(text) {
  const own = ` ${zoneName()}`;
  const typed = normal(text.trim().endsWith(own) ? text.trim().slice(0, -own.length) : text);
  if (/^\d{15,}$/.test(typed)) return tsoMs(typed);
  if (AGO.test(typed)) return Date.now() - [...typed.matchAll(/(\d+)\s*([smhdw])[a-z]*/g)].reduce((sum, [, number, unit]) => sum + number * MS[unit], 0);
  const ms = Date.parse(dated(typed));
  return Number.isNaN(ms) ? null : ms;
}

// As Date.parse reads it in the browser's zone, unless it has one.
function dated(typed) {
  const [, day, time] = /^(today|yesterday)(?:[\s,]+(.*))?$/i.exec(typed) ?? [];
  if (day) {
    const date = new Date();
    date.setDate(date.getDate() - (day.toLowerCase() === "yesterday" ? 1 : 0));
    const two = (value) => String(value).padStart(2, "0");
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}T${time ?? "00:00"}`;
  }
  if (!/^\d{4}-\d\d-\d\d/.test(typed)) return "";
  return typed.length === 10 ? `${typed}T00:00` : typed.replace(" ", "T");
}
