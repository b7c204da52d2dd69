// What was committed, counted by minute, table or shape; and what would take the changes of a range back.

import { h } from "./dom.js";
import { count, many, tsoMs } from "./format.js";
import { button, card, copyable, empty, figure, when } from "./parts.js";
import { compares, link } from "./tables.js";
import { marked, name, plain } from "./values.js";

const MOST_SHOWN = 100;
const SHARED = ["table", "where", "kind", "min_rows"];

// Groups: each step back in time adds to them.

export const newGroups = () => new Map();

export function addGroups(groups, found) {
  for (const one of found) {
    const key = [one.minute, one.table, one.shape].join("\n");
    const known = groups.get(key);
    groups.set(key, known ? joined(known, one) : one);
  }
}

function joined(a, b) {
  const sum = Object.fromEntries(["transactions", "inserts", "updates", "deletes"].map((field) => [field, a[field] + b[field]]));
  const earlier = BigInt(b.first_ts) < BigInt(a.first_ts) ? b.first_ts : a.first_ts;
  const later = BigInt(b.last_ts) > BigInt(a.last_ts) ? b.last_ts : a.last_ts;
  return { ...a, ...sum, first_ts: earlier, last_ts: later };
}

const rowsOf = ({ inserts, updates, deletes }) => inserts + updates + deletes;

const shared = (around) => Object.fromEntries(SHARED.map((field) => [field, around.query.get(field) ?? ""]));

// A range isn't narrowed by a key, so more than the search found would be taken back; and no DDL is.
const canTakeBack = (around) => !around.query.get("key") && !["ddl", "drop"].includes(around.query.get("kind"));

// From the moment before the first of their transactions through the last.
function reach(groups) {
  const { first_ts, last_ts } = groups.reduce(joined);
  return { since: `before:${first_ts}`, until: last_ts };
}

/** The groups as a table; `whole`: all was looked through, so that they can be taken back as one. */
export function drawGroups(groups, around, counts, whole) {
  const bySize = around.query.get("sort") === "size";
  const order = bySize ? (a, b) => rowsOf(b) - rowsOf(a) : (a, b) => (BigInt(a.last_ts) < BigInt(b.last_ts) ? 1 : -1);
  const sorted = [...groups.values()].sort(order);
  if (!sorted.length) return h("div", { id: "groups" }, empty("Nothing was found."));
  return [
    whole && sorted.length > 1 && canTakeBack(around) && h("p", { class: "strip", id: "all-groups" }, h("a", { href: link(around, { ...shared(around), ...reach(sorted), undo: "1" }) }, `Take all ${count(sorted.length)} groups back as one …`)),
    table(sorted, around, counts),
  ];
}

function table(sorted, around, counts) {
  const by = around.query.get("group").split(",");
  const head = { minute: "Minute", table: "Table", shape: "What a transaction does" };
  return h(
    "div",
    { class: "scroll", id: "groups" },
    h(
      "table",
      { class: "table hover" },
      h("thead", {}, h("tr", {}, by.map((each) => h("th", {}, head[each])), h("th", { class: "number wide" }, "Transactions"), h("th", {}, "Rows"), h("th", { class: "wide" }, "From, through"), h("th", {}, "Next"))),
      h("tbody", {}, sorted.slice(0, MOST_SHOWN).map((one) => groupRow(one, by, around, counts))),
    ),
    sorted.length > MOST_SHOWN && h("p", { class: "strip quiet" }, `${count(sorted.length - MOST_SHOWN)} more groups: narrow the search, or group by less.`),
  );
}

function groupRow(one, by, around, counts) {
  const cell = { minute: () => when(tsoMs(one.minute)), table: () => name(one.table), shape: () => plain(one.shape) };
  const range = { ...shared(around), ...(one.table && { table: one.table }), ...reach([one]) };
  return h(
    "tr",
    { id: `group-${one.minute}-${one.table}-${one.shape}` },
    by.map((each) => h("td", {}, cell[each]())),
    h("td", { class: "number wide" }, count(one.transactions)),
    h("td", {}, counts(one)),
    h("td", { class: "wide" }, when(tsoMs(one.first_ts)), h("div", { class: "quiet" }, when(tsoMs(one.last_ts)))),
    h("td", {}, h("a", { href: link(around, range) }, "Show them"), canTakeBack(around) && [" · ", h("a", { href: link(around, { ...range, undo: "1" }) }, "Take back …")]),
  );
}

// Taking a range back

let seen = null;
let looking = false; // again, while the answer before it is shown

export async function loadUndo(around) {
  const wanted = { ...shared(around), since: around.query.get("since") ?? "", until: around.query.get("until") ?? "" };
  const key = JSON.stringify([around.pipeline, wanted]);
  if (seen?.key === key) return seen;
  const state = { key, wanted, document: null, error: null };
  try {
    state.document = await around.ask("undo", wanted);
  } catch (error) {
    state.error = { message: error.message, hint: error.hint };
  }
  seen = state;
  looking = false;
  return state;
}

export function drawUndo({ wanted, document: found, error }, around, { outcome, sql }) {
  const isBack = found?.dry_run?.rows > 0 && found.dry_run.back === found.dry_run.rows;
  const leaves = found?.dry_run?.count > 0 ? "--leave-conflicts " : "";
  const back = { ...wanted, group: "minute,table", sort: "size" };
  return [
    h("div", { class: "head", id: "title" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: link(around, back) }, "Transactions")), h("h1", {}, "Take row changes back")), h("div", { class: "row" }, button(looking ? "Looking …" : "Look again", () => ((seen = null), (looking = true), around.redraw(), around.lookAgain()), { disabled: looking }), compares(names(wanted, found), "Compare both sides", around, isBack ? "main" : ""))),
    card(
      { id: "range", class: "stack" },
      h("p", {}, described(wanted), !isBack && " Nothing is written here. You run a command, or the SQL, against TiDB; the downstream follows by replication."),
      !isBack && ["--dry-run", "--apply"].map((last) => h("p", {}, copyable(command(wanted, around, leaves + last), around))),
      !isBack && h("p", { class: "quiet" }, "The first looks once more, the second runs it in TiDB in one transaction, which commits only if no row was changed since. Then look again here, and compare both sides.", leaves && " Rows that were changed already, listed below, stay as they are."),
    ),
    error && h("section", { class: "held bad", id: "refused", role: "alert" }, h("p", {}, plain(error.message)), error.hint && h("p", {}, "Hint: ", marked(error.hint))),
    found && result(found, around, { outcome, sql }),
  ];
}

// `verify` takes the same globs; without any, the tables that have rows to take back.
const names = ({ table }, found) => (table ? globs(table) : [...new Set((found?.preview ?? []).map((row) => row.table))]);

// A comma inside of brackets is of a table's name.
const globs = (text) => text.split(/,(?![^[]*\])/).map((each) => each.trim()).filter(Boolean);

function described({ since, until, table, kind, where, min_rows }) {
  const kinds = { insert: "Inserts", update: "Updates", delete: "Deletes" };
  return [`${kinds[kind] ?? "Row changes"} of `, table ? globs(table).map((each, i) => [i > 0 && ", ", name(each)]) : "all tables", where && [" where ", h("code", {}, plain(where))], min_rows > 1 && ` in transactions with at least ${count(Number(min_rows))} of them`, " after ", spoken(since), " through ", until ? spoken(until) : "now", "."];
}

const spoken = (text) => (/^\d{15,19}$/.test(text) ? when(tsoMs(text)) : /^before:\d{15,19}$/.test(text) ? ["the moment before ", when(tsoMs(text.slice(7)))] : text);

function command({ since, until, table, kind, where, min_rows }, around, last) {
  const option = (flag, value) => (value ? ` ${flag} ${quoted(value)}` : "");
  return `sluice undo${option("--pipeline", around.pipeline)}${option("--since", since)}${option("--until", until)}${globs(table ?? "").map((each) => option("--table", each)).join("")}${option("--kind", kind)}${option("--where", where)}${option("--min-rows", min_rows)} ${last}`;
}

const quoted = (text) => (/^[\w.:@/+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function result(found, around, { outcome, sql }) {
  const tried = found.dry_run;
  return [
    h(
      "dl",
      { class: "facts", id: "facts" },
      figure("Transactions", count(found.transactions), [when(tsoMs(found.first_ts)), " through ", when(tsoMs(found.last_ts))]),
      figure("Row changes", tried ? count(tried.rows) : "–", "a row that was changed several times counts once"),
      figure("Conflicts", tried ? count(tried.count - (tried.back ?? 0)) : "–", tried?.back ? `rows that were changed since; ${count(tried.back)} are as they were` : "rows that were changed since", tried?.count > (tried?.back ?? 0) ? "bad" : ""),
    ),
    outcome(found),
    found.notes.map((note, i) => h("section", { class: "held warn", id: `left-out-${i}` }, h("p", {}, plain(note)))),
    found.others.length > 0 && h("section", { class: "held warn", id: "others" }, h("p", {}, `${many(found.partial, "transaction")} also changed what stays, of `, found.others.map((each, i) => [i > 0 && ", ", name(each)]), ".")),
    card(
      { id: "preview" },
      h("h2", {}, "Rows before and after"),
      h("p", { class: "quiet" }, "A few of each table and kind."),
      h("ul", { class: "diff" }, found.preview.map((row) => h("li", { class: { inserts: "come", deletes: "gone", updates: "changed" }[row.effect] }, name(row.table), " ", row.now && h("del", { class: "mono" }, plain(row.now)), row.now && row.then && " → ", row.then && h("ins", { class: "mono" }, plain(row.then))))),
    ),
    card({ id: "sql" }, h("h2", {}, "SQL for TiDB"), sql(found, "undo.sql")),
  ];
}
