// What was committed, the newest first: searched by time, table and key. One transaction with its rows, and what one can do about it.

import { h } from "./dom.js";
import { count, many, momentParts, size, span, tsoMs } from "./format.js";
import { addGroups, drawGroups, drawUndo, loadUndo, newGroups } from "./groups.js";
import { drawIncidents, forget, loadIncidents, searched } from "./incidents.js";
import { asked, zoneName } from "./moments.js";
import { button, card, copy, copyable, empty, figure, when } from "./parts.js";
import { link } from "./tables.js";
import { marked, name, plain, value } from "./values.js";

export let everyMs = 4000;

const PAGE = 50;
const FIELDS = ["table", "key", "where", "kind", "min_rows", "since", "until", "group", "sort"];
const MOMENTS = new Set(["since", "until"]);
const CHOICES = {
  kind: [["", "Everything"], ["insert", "Inserts"], ["update", "Updates"], ["delete", "Deletes"], ["ddl", "DDL"], ["drop", "DDL, rows gone"]],
  group: [["", "Not at all"], ["unusual", "Stands out"], ["minute", "By minute"], ["table", "By table"], ["shape", "By what they do"], ["minute,table", "Minute, table"]],
  sort: [["", "The newest"], ["size", "Most rows"]],
};
let found = null;
let searching = false; // what is shown is of the search before
let seen = null;

export async function load(around) {
  if (around.query.get("undo")) return { undone: await loadUndo(around) };
  const at = around.query.get("at");
  const loaded = await (at ? loadOne(around, at) : loadList(around));
  if (!at) seen = null;
  return around.query.get("at") === at ? loaded : await load(around); // somebody went on meanwhile
}

// The list: steps back in time until a page is full; then what is new on top of it.

async function loadList(around) {
  const wanted = Object.fromEntries(FIELDS.map((field) => [field, around.query.get(field) ?? ""]));
  const key = JSON.stringify(wanted);
  if (found?.key !== key) found = { key, wanted, entries: [], groups: newGroups(), large: [], through: "", top: "", complete: false, windows: 0, unknown: [], unknownTable: "", problem: "", hint: "", most: PAGE, stopped: false };
  const state = found;
  if (wanted.group === "unusual") {
    state.unusual = loadIncidents(around);
    everyMs = 60_000;
    searching = !state.unusual;
    return { list: state };
  }
  if (looks(state)) await lookBack(around, state);
  else if (state.top && !wanted.until && !isWhole(state)) await lookAhead(around, state);
  everyMs = looks(state) ? 0 : 4000;
  searching = false;
  return { list: state };
}

// The largest, and groups, are known once all was looked through.
const looks = (state) => !state.complete && !state.problem && !state.stopped && (isWhole(state) || state.entries.length < state.most);
const isWhole = ({ wanted }) => Boolean(wanted.group) || wanted.sort === "size";
const order = (state) => state.wanted.sort === "size" ? (a, b) => (b.rows ?? 0) - (a.rows ?? 0) : newest;
const newest = (a, b) => (BigInt(a.commit_ts) < BigInt(b.commit_ts) ? 1 : -1);

async function lookBack(around, state) {
  const step = await around.ask("transactions", { ...state.wanted, until: state.through || state.wanted.until });
  state.entries.push(...step.found);
  if (isWhole(state)) state.entries = state.entries.sort(order(state)).slice(0, PAGE);
  addGroups(state.groups, step.groups);
  state.large.push(...step.large);
  state.top ||= step.last;
  state.windows += step.windows;
  Object.assign(state, { through: step.through, complete: step.complete, unknown: step.unknown, unknownTable: step.unknown_table ?? "", problem: step.problem, hint: step.hint });
}

async function lookAhead(around, state) {
  const step = await around.ask("transactions", { ...state.wanted, since: state.top });
  if (!step.complete) return void (found = null); // so much is new that it is looked through from the top
  state.entries.unshift(...step.found);
  state.large.unshift(...step.large);
  state.top = step.last;
}

export function draw({ list, one, state, undone }, around) {
  if (undone) return drawUndo(undone, around, { outcome, sql: (found, file) => script(found, file, around) });
  return one ? drawOne(one, state, around) : drawList(list, around);
}

function drawList(list, around) {
  return [
    h("div", { class: "head", id: "title" }, h("h1", {}, "Transactions"), form(around)),
    search(around),
    list.problem && h("section", { class: "held bad", id: "problem" }, h("p", {}, h("strong", {}, "It can't be looked further back: "), plain(list.problem)), list.hint && h("p", {}, "Hint: ", marked(list.hint))),
    list.unknown.length > 0 && h("section", { class: "held warn", id: "unknown" }, h("p", {}, "No table that was looked at so far has a column ", list.unknown.map((column, i) => [i > 0 && " or ", name(column)]), ".")),
    list.unknownTable && !list.entries.length && h("section", { class: "held warn", id: "unknown-table" }, h("p", {}, plain(list.unknownTable))),
    list.unusual && !searching ? drawIncidents(list.unusual, around) : searching ? card({ id: "list", class: "flush" }, h("p", { class: "strip quiet", role: "status" }, "Looking …")) : card({ id: "list", class: "flush" }, list.wanted.group ? drawGroups(list.groups, around, counts, list.complete) : entries(list, around), foot(list, around)),
  ];
}

const form = (around) => h("div", { class: "row" }, h("a", { class: "button main", id: "find-accident", href: searched(around), title: "Deletes and updates of the last 24 hours that stand out, and what takes them back" }, "Find an accident"), around.dag("operate", "Skip, replace, pause", { kindOfLink: "button" }));

function search(around) {
  const field = (id, text, props = {}) => h("label", { class: `field ${props.kind ?? ""}` }, h("span", {}, text), h("input", { id, name: id, value: around.query.get(id) ?? "", autocomplete: "off", spellcheck: "false", ...props }));
  const choice = (id, text) => h("label", { class: "field" }, h("span", {}, text), h("select", { id, name: id }, CHOICES[id].map(([value, shown]) => h("option", { value, selected: value === (around.query.get(id) ?? "") }, shown))));
  return h(
    "form",
    { id: "search", class: "card search", onsubmit: (event) => submit(event, around) },
    field("table", "Table", { placeholder: "shop.*", kind: "roomy" }),
    field("key", "Key", { placeholder: "7", kind: "roomy" }),
    field("where", "Condition", { placeholder: "old.status = 'paid'", kind: "grow" }),
    choice("kind", "What"),
    field("min_rows", "Rows, at least", { placeholder: "1", type: "number", min: 1, max: 9999999 }),
    field("since", "After", { placeholder: "2h or a time" }),
    field("until", "Through", { placeholder: "2h or a time" }),
    choice("group", "Group"),
    choice("sort", "First"),
    h("div", { class: "row end" }, h("span", { id: "typed-zone", class: "quiet small" }, `A time without a zone is one of ${zoneName()}.`), FIELDS.some((id) => around.query.get(id)) && h("button", { class: "button", type: "button", onclick: () => clear(around) }, "Clear"), h("button", { class: "button main", type: "submit" }, "Search")),
  );
}

function submit(event, around) {
  event.preventDefault();
  const values = new FormData(event.currentTarget);
  for (const id of FIELDS) around.setQuery(id, MOMENTS.has(id) ? asked(String(values.get(id))) : String(values.get(id)).trim());
  found = null;
  forget();
  searching = true;
  around.redraw();
  around.lookAgain();
}

function clear(around) {
  for (const id of FIELDS) around.setQuery(id, "");
  document.getElementById("search").reset();
  for (const id of FIELDS) document.getElementById(id).value = "";
  found = null;
  forget();
  searching = true;
  around.redraw();
  around.lookAgain();
}

function entries(list, around) {
  const both = [...list.entries, ...list.large.map((one) => ({ ...one, commit_ts: one.hi, large: true }))];
  both.sort(order(list));
  if (!both.length) return looks(list) ? h("div", { id: "entries" }) : h("div", { id: "entries" }, list.stopped ? null : list.top === "0" ? empty("Nothing is landed yet.", "Transactions appear here within seconds of their commit, once landing runs.") : empty("Nothing was found.", "as far back as the past is kept"));
  return h("ol", { class: "entries", id: "entries" }, both.map((one) => (one.large ? large(one) : one.kind ? ddl(one, around) : transaction(one, around))));
}

const committed = (one, around) =>
  h(
    "div",
    { class: "when" },
    h("a", { href: link(around, { at: one.at ?? one.commit_ts }), onclick: (event) => go(event, around, one.at ?? one.commit_ts) }, when(tsoMs(one.commit_ts), withMs(tsoMs(one.commit_ts)))),
    h("div", { class: "mono faint" }, one.commit_ts),
  );

function withMs(ms) {
  const [before, fraction, behind] = momentParts(ms);
  return [before, h("span", { class: "faint" }, fraction), behind];
}

const transaction = (one, around) =>
  h("li", { id: `at-${one.at}` }, committed(one, around), h("div", { class: "what" }, one.tables.map((rows) => h("div", {}, name(rows.table), counts(rows), keys(rows)))));

const counts = ({ inserts, updates, deletes }) =>
  h("span", { class: "counts" }, inserts > 0 && h("span", { class: "come" }, `+${count(inserts)}`), updates > 0 && h("span", { class: "changed" }, `~${count(updates)}`), deletes > 0 && h("span", { class: "gone" }, `−${count(deletes)}`));

function keys(rows) {
  const more = rows.inserts + rows.updates + rows.deletes > rows.keys.length;
  return h("span", { class: "mono quiet keys" }, plain(rows.keys.join("; ")), more && rows.keys.length > 0 && "; …");
}

const ddl = (one, around) =>
  h("li", { id: `at-${one.at}` }, committed(one, around), h("div", { class: "what" }, h("span", { class: `state ${one.drops ? "bad" : "busy"}` }, one.drops ? `${one.kind}, rows are gone` : one.kind), h("span", { class: "mono statement" }, plain(one.statement))));

const large = (one) =>
  h("li", { id: `large-${one.lo}` }, h("div", { class: "when" }, when(tsoMs(one.lo)), h("div", { class: "mono faint" }, one.lo)), h("div", { class: "what" }, h("span", { class: "state warn" }, "large"), h("span", {}, `${many(one.changes, "change")} (${size(one.bytes)}) through `, when(tsoMs(one.hi)), ": too many to look through here. "), h("code", {}, `sluice find --since ${one.lo} --until ${one.hi}`), " does."));

function foot(list, around) {
  const on = looks(list);
  const far = list.through && when(tsoMs(list.through));
  const said = list.complete ? "That is all there is." : on ? far && ["Looking back, through ", far, " until now"] : far && ["Looked through back to ", far];
  return h(
    "div",
    { class: "strip pager", id: "foot" },
    h("span", { class: "quiet" }, said, list.windows > 0 && !list.complete && `, ${many(list.windows, "window")}`),
    on && button("Stop", () => ((list.stopped = true), around.redraw())),
    !on && !list.complete && !list.problem && button("Older ones", () => (Object.assign(list, { stopped: false, most: list.entries.length + PAGE }), around.lookAgain())),
  );
}

function go(event, around, at) {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "");
  around.setQuery("at", at);
  around.lookAgain();
  scrollTo(0, 0);
}

// One transaction

async function loadOne(around, at) {
  if (seen?.at !== at) seen = { at, table: "", offset: 0, undo: null, undoing: false, whole: {}, why: "" };
  everyMs = 4000;
  const state = seen;
  const [one, now] = await Promise.all([around.ask(`transactions/${encodeURIComponent(at)}`, { table: state.table, offset: state.offset || "" }), around.ask(`transactions/${encodeURIComponent(at)}/state`)]);
  return { one, state: now };
}

function drawOne(one, state, around) {
  const back = (event) => {
    event.preventDefault();
    around.setQuery("at", "");
    around.lookAgain();
  };
  return [
    h("div", { class: "head", id: "title" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: link(around, {}), onclick: back }, "Transactions")), h("h1", {}, one.ddl ? "DDL of " : "", when(tsoMs(one.commit_ts)))), standing(state)),
    facts(one, around),
    state.refused && h("section", { class: "held bad", id: "refused" }, h("p", {}, h("strong", {}, "Applying has stopped at it: "), plain(state.refused.text)), h("p", {}, "Hint: ", marked(state.refused.hint)), h("p", {}, "To leave it out: ", copyable(state.refused.command, around))),
    one.left_out && h("section", { class: "held warn", id: "left-out" }, h("p", {}, h("strong", {}, "It was left out when it landed: "), plain(one.left_out), ". Its rows aren't kept.")),
    one.ddl && card({ id: "ddl" }, h("h2", {}, one.ddl.kind, one.ddl.drops && ", rows are gone after it"), h("pre", { class: "sql" }, plain(one.ddl.statement))),
    one.others.length > 0 && h("section", { class: "held", id: "others" }, h("p", {}, "Committed at the same timestamp: ", one.others.map((at, i) => [i > 0 && ", ", h("a", { href: link(around, { at }), onclick: (event) => go(event, around, at) }, at)]), ".")),
    hint(one, state, around),
    one.tables.length > 0 && rows(one, around),
  ];
}

function standing({ applied, override, problem, refused }) {
  if (override) return h("span", { class: "state warn" }, override.action === "skip" ? "skipped by override" : "replaced by override");
  if (problem) return h("span", { class: "state warn", title: problem }, "the downstream doesn't answer");
  if (refused) return h("span", { class: "state bad", title: refused.text }, "refused: applying has stopped here");
  return applied ? h("span", { class: "state good" }, "applied") : h("span", { class: "state busy" }, "not applied yet");
}

const total = (one) => one.tables.reduce((sum, { inserts, updates, deletes }) => sum + inserts + updates + deletes, 0);

function facts(one, around) {
  const took = one.start_ts !== "0" ? tsoMs(one.commit_ts) - tsoMs(one.start_ts) : null;
  return h(
    "dl",
    { class: "facts", id: "facts" },
    figure("Row changes", one.complete ? count(total(one)) : `${count(total(one))} and more`, one.tables.length ? `in ${many(one.tables.length, "table")}` : "no rows of its own"),
    figure("Ran for", took === null ? "–" : span(took), "from its start to its commit"),
    one.channels?.length > 0 && figure("Came from", one.channels.map((channel) => `channel ${channel}`).join(", "), "by its mark: a pipeline wrote it"),
    h("div", { class: "fact" }, h("dt", {}, "Commit ts"), h("dd", {}, copyable(one.commit_ts, around), h("span", { class: "more" }, one.archived ? "kept in the archive" : "kept in the relay log"))),
  );
}

function hint(one, state, around) {
  const may = around.dags.operate?.may;
  const skips = !state.applied && !state.override && !one.left_out;
  return card(
    { id: "remedies" },
    h("h2", {}, "What you can do"),
    state.problem && h("p", { class: "bad-text" }, "Whether it is applied can't be known now: ", plain(state.problem)),
    state.override && decided(state.override, one, state, may, around),
    skips && skip(one, may, state.applied === false, around),
    state.applied && !one.ddl && undo(one, around),
    h("p", { class: "quiet" }, "The moment before it can be restored beside what is there: ", around.dag("restore", "the form to restore"), " with ", copyable(`before:${one.commit_ts}`, around), "."),
  );
}

function decided(override, one, state, may, around) {
  return h(
    "div",
    { class: "stack" },
    h("p", {}, override.action === "skip" ? "It is to be skipped" : "Other statements are executed in its place", ", decided by ", name(override.by || "an operator"), override.made_ms > 0 && [" at ", when(override.made_ms)], override.why && [": ", plain(override.why)], override.used_ms > 0 && ["; done at ", when(override.used_ms)], "."),
    override.sql.length > 0 && h("pre", { class: "sql" }, plain(override.sql.join(";\n"))),
    !override.used_ms && may && h("div", {}, button("Take the override back", () => around.order(`transactions/${one.at}/remove-override`, {}), { sure: "Then it is applied as it is, unless it was passed already." })),
  );
}

function skip(one, may, known, around) {
  const what = one.ddl ? "skip-ddl" : "skip-txn";
  const order = () => around.order(`transactions/${one.at}/${what}`, { why: document.getElementById("why").value.trim() });
  return h(
    "div",
    { class: "stack" },
    h("p", {}, known ? "It is not downstream yet, and" : "If it is not downstream yet, it", " can be left out there for good. The downstream then differs from the upstream by what it did."),
    may
      ? h("div", { class: "row" }, h("input", { id: "why", class: "grow", maxlength: 1000, placeholder: "Why? It is kept with the override", "aria-label": "Why" }), button(one.ddl ? "Skip this DDL" : "Skip this transaction", order, { kind: "danger", sure: `${one.ddl ? "This DDL is" : `${many(total(one), "row change")} of this transaction are`} never applied downstream. Your name is kept with the override.` }))
      : h("p", { class: "quiet" }, "Your role in Airflow doesn't let you trigger the DAG operate: a person with that right has to decide."),
  );
}

async function askUndo(one, around) {
  seen.undoing = true;
  around.redraw();
  try {
    seen.undo = await around.ask(`transactions/${one.at}/undo`);
  } catch (error) {
    seen.undo = { error: error.message, hint: error.hint };
  }
  seen.undoing = false;
  around.redraw();
}

function undo(one, around) {
  const told = seen?.undo;
  return h(
    "div",
    { class: "stack", id: "undo" },
    h("p", {}, "It can be taken back by SQL that is made of its old values. You run it in TiDB, upstream; the downstream follows by replication. Nothing is written here."),
    h("div", {}, button(seen?.undoing ? "Looking …" : told ? "Look again" : "Show the SQL, and try it on the replica", () => askUndo(one, around), { disabled: Boolean(seen?.undoing) })),
    told?.error && h("section", { class: "held bad" }, h("p", {}, plain(told.error)), told.hint && h("p", {}, "Hint: ", marked(told.hint))),
    told && !told.error && outcome(told),
    told?.sql && script(told, `undo-${one.commit_ts}.sql`, around),
    told?.cut && h("p", { class: "quiet" }, "It is longer than a page shows: ", h("code", {}, `sluice undo ${one.commit_ts} --output undo.sql`), " writes all of it."),
  );
}

const script = ({ sql, cut }, file, around) =>
  h("div", { class: "stack" }, h("div", { class: "row end" }, button("Copy", () => copy(sql, around), { disabled: cut }), button("Save", () => save(file, sql), { disabled: cut })), h("pre", { class: "sql tall", tabindex: 0 }, plain(cut ? `${sql}…` : sql)));

function outcome({ dry_run: tried, problem }) {
  if (problem) return h("section", { class: "held warn" }, h("p", {}, h("strong", {}, "It could not be tried on the replica: "), plain(problem)));
  const at = [" in the replica, as of ", when(tsoMs(tried.checkpoint))];
  if (!tried.count) return h("section", { class: "held good" }, h("p", {}, h("strong", {}, `${many(tried.rows, "row")} looked at`, at, ": none was changed since.")), unchecked(tried));
  if (tried.back && tried.back === tried.rows) return h("section", { class: "held good", id: "is-back" }, h("p", {}, h("strong", {}, `All ${many(tried.rows, "row")} are as they were`, at, ":"), " nothing is left to take back."), unchecked(tried));
  return h(
    "section",
    { class: "held bad" },
    tried.back > 0 && h("p", {}, `${many(tried.back, "row")} of them were taken back before, and are as they were.`),
    h("p", {}, h("strong", {}, `${many(tried.count, "row")} of ${count(tried.rows)} ${tried.count === 1 ? "stands" : "stand"} in its way`, at, ":")),
    h("ul", {}, tried.conflicts.map((each) => h("li", {}, name(each.table), " ", h("span", { class: "mono" }, plain(each.row)), " ", each.why))),
    tried.count > tried.conflicts.length && h("p", {}, `and ${count(tried.count - tried.conflicts.length)} more`),
    unchecked(tried),
  );
}

const unchecked = (tried) => tried.unchecked.map((text) => h("p", {}, plain(text)));

function save(file, text) {
  const node = h("a", { download: file });
  node.href = URL.createObjectURL(new Blob([text], { type: "application/sql" }));
  node.click();
  setTimeout(() => URL.revokeObjectURL(node.href), 1000);
}

// Its rows

function rows(one, around) {
  const turn = (table) => () => (Object.assign(seen, { table, offset: 0 }), around.lookAgain());
  const tab = (text, table) => h("button", { type: "button", class: "tab", "aria-pressed": String(seen.table === table), onclick: turn(table) }, text);
  const chosen = one.tables.filter((each) => !seen.table || each.table === seen.table);
  const all = chosen.reduce((sum, { inserts, updates, deletes }) => sum + inserts + updates + deletes, 0);
  return h(
    "section",
    { id: "rows", class: "stack" },
    h("div", { class: "head" }, h("h2", {}, "Rows"), one.tables.length > 1 && h("div", { class: "tabs wrap" }, tab("All", ""), one.tables.slice(0, 30).map((each) => tab([name(each.table), " ", counts(each)], each.table)))),
    alike(one.rows).map((group) => (group.length > 1 && group[0].kind !== "update" ? together(group, one, around) : group.map((row) => changed(row, one, around)))),
    steps(one, all, around),
  );
}

function steps(one, all, around) {
  const end = seen.offset + one.rows.length;
  if (!seen.offset && end >= all && one.complete) return null;
  const to = (offset) => () => ((seen.offset = offset), around.lookAgain(), document.getElementById("rows").scrollIntoView());
  return h("div", { class: "strip pager", id: "steps" }, button("Previous", to(Math.max(0, seen.offset - PAGE)), { disabled: !seen.offset }), h("span", { class: "quiet" }, one.rows.length ? `Rows ${count(seen.offset + 1)} to ${count(end)} of ${count(all)}${one.complete ? "" : " and more"}` : "no more rows"), button("Next", to(end), { disabled: end >= all && one.complete }));
}

// Rows of one table and kind that follow each other.
function alike(rows) {
  const groups = [];
  for (const row of rows) {
    const last = groups.at(-1)?.[0];
    if (last && last.table === row.table && last.kind === row.kind && !last.fault && !row.fault) groups.at(-1).push(row);
    else groups.push([row]);
  }
  return groups;
}

function together(group, one, around) {
  const [{ kind, table, values, position }] = group;
  const [colour, word] = WORDS[kind] ?? ["", kind];
  const side = kind === "insert" ? "new" : "old";
  return h(
    "article",
    { class: `card change ${colour}`, id: `row-${position}` },
    h("div", { class: "row" }, h("span", { class: "counts" }, h("span", { class: kind }, word)), h("strong", {}, name(table)), h("span", { class: "faint" }, many(group.length, "row"))),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "table grid" },
        h("thead", {}, h("tr", {}, values.map((each) => h("th", {}, name(each.column), each.key && mark())))),
        h("tbody", {}, group.map((row) => h("tr", { id: `change-${row.position}` }, row.values.map((each) => cell(row, each, side, one, around))))),
      ),
    ),
  );
}

const mark = () => h("span", { class: "key-mark", title: "It is of the key by which the row is found" }, "key");

const WORDS = { insert: ["come", "inserted"], update: ["changed", "updated"], delete: ["gone", "deleted"] };

function changed(row, one, around) {
  const [kind, word] = WORDS[row.kind] ?? ["", row.kind];
  const updated = row.kind === "update";
  const shown = updated ? row.values.filter((each) => each.changed || each.key) : row.values;
  const rest = updated ? row.values.filter((each) => !each.changed && !each.key) : [];
  return h(
    "article",
    { class: `card change ${kind}`, id: `row-${row.position}` },
    h("div", { class: "row" }, h("span", { class: `counts` }, h("span", { class: kind }, word)), h("strong", {}, name(row.table)), h("span", { class: "faint" }, `change ${count(row.position)}`)),
    row.fault && h("p", { class: "bad-text" }, "It can't be read: ", plain(row.fault)),
    shown.length > 0 && grid(row, shown, one, around),
    rest.length > 0 && h("details", {}, h("summary", { class: "quiet" }, `${many(rest.length, "column")} as before`), grid(row, rest, one, around)),
  );
}

function grid(row, values, one, around) {
  const sides = row.kind === "insert" ? ["new"] : row.kind === "delete" ? ["old"] : ["old", "new"];
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "table row-values" },
      sides.length > 1 && h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, "before"), h("th", {}, "after"))),
      h("tbody", {}, values.map((each) => h("tr", { class: each.changed ? "differs" : "" }, h("th", { scope: "row" }, name(each.column), each.key && mark()), sides.map((side) => cell(row, each, side, one, around))))),
    ),
  );
}

function cell(row, each, side, one, around) {
  const place = `${row.position}/${each.column}/${side}`;
  const whole = seen.whole[place];
  const marked = each.changed ? (side === "old" ? "gone" : "come") : "";
  if (whole !== undefined) return h("td", { class: marked }, h("pre", { class: "whole", tabindex: 0 }, plain(whole.text)), h("div", { class: "row" }, whole.cut && h("span", { class: "quiet" }, "the beginning of it"), h("a", { href: whole.address, download: "" }, "Save"), h("button", { class: "bare link", type: "button", onclick: () => (delete seen.whole[place], around.redraw()) }, "less")));
  return h("td", { class: marked }, value(each[side], () => fetchWhole(row, each, side, one, around)));
}

const MOST_SHOWN = 200_000;

async function fetchWhole(row, each, side, one, around) {
  const address = new URL(`api/transactions/${one.at}/value`, location.href);
  address.search = new URLSearchParams({ position: row.position, column: each.column, side, ...(around.pipeline && { pipeline: around.pipeline }) });
  try {
    const answer = await fetch(address, { cache: "no-store" });
    if (!answer.ok) throw new Error(`Airflow answered with ${answer.status}.`);
    const text = each[side].kind === "bytes" ? await hex(answer) : await answer.text();
    seen.whole[`${row.position}/${each.column}/${side}`] = { text: text.slice(0, MOST_SHOWN), cut: text.length > MOST_SHOWN, address: String(address) };
    around.redraw();
  } catch (error) {
    around.note(error.message, "bad");
  }
}

async function hex(answer) {
  const bytes = new Uint8Array(await answer.arrayBuffer()).subarray(0, MOST_SHOWN / 2 + 1);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const begin = (around) =>
  addEventListener("popstate", () => {
    around.setQuery("at", new URLSearchParams(location.search).get("at") ?? "");
    around.lookAgain();
  });
