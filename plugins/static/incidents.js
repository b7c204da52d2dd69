// What stands out among the changes: bursts of deletes, updates and inserts, why each of them does, and what takes it back.

import { h } from "./dom.js";
import { count, many, span, tsoMs } from "./format.js";
import { card, empty, when } from "./parts.js";
import { link } from "./tables.js";
import { marked, name, plain } from "./values.js";

const MOST_TABLES = 50; // in an address
const DONE = { delete: "deleted", update: "updated", insert: "inserted" };
const COLOURS = { delete: "gone", update: "changed", insert: "come" };
const SIGNS = { delete: "−", update: "~", insert: "+" };

/** Where the search for what stands out begins, in a day. */
export const searched = (around) => link(around, { group: "unusual", since: "24h" }, "transactions");

let seen = null;

export const forget = () => (seen = null);

/** What stands out in what is searched for: asked once, until it is searched again; null until it is known. */
export function loadIncidents(around) {
  const wanted = Object.fromEntries(["table", "key", "where", "kind", "since", "until"].map((field) => [field, around.query.get(field) ?? ""]));
  const key = JSON.stringify([around.pipeline, wanted]);
  if (seen?.key !== key) {
    const state = (seen = { key, document: null, error: null });
    around.ask("incidents", wanted).then((found) => (state.document = found), (error) => (state.error = error)).finally(around.lookAgain);
  }
  const { document, error } = seen;
  if (!error) return document;
  seen = null;
  throw error;
}

export function drawIncidents(found, around) {
  return [
    found.problem && h("section", { class: "held bad", id: "problem" }, h("p", {}, h("strong", {}, "It can't be looked further back: "), plain(found.problem)), found.hint && h("p", {}, "Hint: ", marked(found.hint))),
    found.large.length > 0 && h("section", { class: "held warn", id: "large" }, h("p", {}, `${many(found.large.length, "stretch", "stretches")} with too many changes to look through here: `, found.large.slice(0, 5).map((one, i) => [i > 0 && ", ", h("code", {}, `sluice find --since ${one.lo} --until ${one.hi} --group minute --group table`)]), ".")),
    found.incidents.length ? found.incidents.map((one) => incident(one, found, around)) : card({ id: "incidents" }, found.last === "0" ? empty("Nothing is landed yet.") : empty("Nothing stands out.", `${many(found.rows, "row change")} looked through.`)),
    foot(found),
  ];
}

function foot(found) {
  if (found.last === "0") return null;
  const took = tsoMs(found.last) - tsoMs(found.through);
  return h(
    "p",
    { class: "quiet", id: "foot" },
    `Compared with ${many(found.rows, "row change")} from `, when(tsoMs(found.through)), " through ", when(tsoMs(found.last)), `, ${span(took)}.`,
    !found.complete && !found.problem && " It was not looked further back, which takes longer: name the tables, or a time in Through.",
    " TRUNCATE and DROP are DDL: choose DDL, rows gone.",
  );
}

function incident(one, found, around) {
  const several = new Set(one.bursts.map(({ table }) => table)).size;
  const first = one.bursts[0];
  const asOne = one.min_rows && several <= MOST_TABLES;
  const range = reach(one, [...new Set(one.bursts.map(({ glob }) => glob))], one.min_rows);
  return card(
    { id: `incident-${one.first_ts}-${one.kind}`, class: "stack incident" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, h("span", { class: COLOURS[one.kind] }, many(one.rows, "row")), ` ${DONE[one.kind]} `, several > 1 ? `in ${count(several)} tables` : ["in ", name(first.table)]),
      h("div", { class: "row" }, asOne && links(range, around, several > 1 ? "Take all back …" : "Take it back …", one.back_ts !== 0 ? "button" : "button main")),
    ),
    h("p", {}, when(tsoMs(one.first_ts)), " through ", when(tsoMs(one.last_ts)), `, ${span(tsoMs(one.last_ts) - tsoMs(one.first_ts))}.`),
    one.back_ts !== 0 && h("section", { class: "held good" }, h("p", {}, "It seems to be taken back: as many rows of these tables were inserted at ", when(tsoMs(one.back_ts)), ".")),
    h("ul", { class: "bursts" }, one.bursts.slice(0, MOST_TABLES).map((burst) => row(burst, found, several > 1 || !asOne, around))),
    several > 1 && !asOne && h("p", { class: "quiet" }, "One range can't tell these rows from what an application did meanwhile: take them back table by table."),
  );
}

const reach = ({ kind, first_ts, last_ts }, globs, least) => ({ table: globs.join(","), kind, min_rows: least > 1 ? String(least) : "", since: `before:${first_ts}`, until: last_ts });

const links = (range, around, text, kind) => [
  h("a", { class: kind, href: link(around, { ...range, undo: "1" }) }, text),
  h("a", { class: kind.replace(" main", ""), href: link(around, range) }, "Show them"),
];

function row(burst, found, alone, around) {
  const [back, show] = links(reach(burst, [burst.glob], burst.least), around, "Take back …", "link");
  return h(
    "li",
    { id: `burst-${burst.table}-${burst.first_ts}` },
    h("div", { class: "row" }, h("strong", {}, name(burst.table)), h("span", { class: "counts" }, h("span", { class: COLOURS[burst.kind] }, `${SIGNS[burst.kind]}${count(burst.rows)}`)), alone && h("span", {}, back, " · ", show)),
    h("div", { class: "quiet" }, why(burst, found)),
  );
}

function why(burst, found) {
  const sizes = burst.least === burst.most ? count(burst.most) : `${count(burst.least)} to ${count(burst.most)}`;
  const mine = `${burst.transactions === 1 ? "One transaction" : `${count(burst.transactions)} transactions`} of ${sizes} ${burst.most === 1 ? "row" : "rows"}`;
  if (!burst.others) return [`${mine}. No other ${burst.kind} of this table in ${span(tsoMs(found.last) - tsoMs(found.through))}.`];
  const usual = `${many(burst.others, "other transaction")}, of at most ${many(burst.others_most, "row")}`;
  return [
    `${mine}. ${usual}`,
    burst.between > 0 ? `: ${count(burst.between)} of them in the same minutes, which ${burst.between === 1 ? "is" : "are"} left out.` : ".",
    burst.is_mixed && h("div", { class: "bad-text" }, "An application's may be among them: others of this size came at other times."),
  ];
}
