// All tables: how large, how much was changed, whether they were compared; and one of them with what DDL made of it.

import { h, s } from "./dom.js";
import { ago, count, many, size, tsoMs } from "./format.js";
import { button, card, empty, figure, pager, when } from "./parts.js";
import { later, marked, name, plain } from "./values.js";

export let everyMs = 5000;

const HOW = {
  upstream: "with TiDB at the checkpoint",
  archive: "with snapshot and archive",
  continuous: "changed rows, again and again",
};
const ENOUGH = 20;
let past = null;

export async function load(around) {
  const one = around.query.get("table");
  const loaded = await (one ? loadOne(around, one) : loadList(around));
  return around.query.get("table") === one ? loaded : await load(around); // somebody went on meanwhile
}

async function loadList(around) {
  everyMs = 5000;
  const wanted = Object.fromEntries(["find", "only", "sort", "down", "page"].map((key) => [key, around.query.get(key)]));
  const list = await around.ask("tables", wanted);
  past = null;
  return { list };
}

async function loadOne(around, table) {
  if (past?.table !== table) past = { table, name: table, through: "", changes: [], columns: null, complete: false, wanted: ENOUGH, problem: "" };
  const [found] = await Promise.all([around.ask("tables/one", { name: table }), lookBack(around, past)]);
  everyMs = looks(past) ? 0 : 5000;
  return { one: found, table };
}

const looks = (state) => !state.complete && !state.problem && state.changes.length < state.wanted;

async function lookBack(around, state) {
  if (!looks(state)) return;
  const until = state.through;
  try {
    const step = await around.ask("tables/history", { name: state.name, until });
    // If another answer of the page failed, the page was loaded again, and this step asked for twice.
    if (state.through !== until) return;
    state.changes.push(...step.changes);
    state.columns ??= step.columns;
    Object.assign(state, { name: step.name, through: step.through, complete: step.complete });
  } catch (error) {
    Object.assign(state, { problem: error.message, hint: error.hint });
  }
}

export function draw({ list, one, table }, around) {
  return one ? drawOne(one, table, around) : drawList(list, around);
}

function drawList(list, around) {
  return [
    h("div", { class: "head", id: "title" }, h("h1", {}, "Tables"), h("div", { class: "row" }, h("p", { class: "quiet" }, read(list)), around.dag("verify", "Compare tables", { kindOfLink: "button" }))),
    unanswered(list.errors, around),
    h("dl", { class: "facts", id: "facts" }, figures(list)),
    card({ id: "list", class: "flush" }, filters(list, around), rows(list, around), pager(Number(around.query.get("page") ?? 0), Math.ceil(list.count / 50), (page) => turnTo(page, around))),
  ];
}

const read = ({ read_ms, reading }) => (read_ms ? ["rows and sizes as the downstream estimated them ", when(read_ms, ago(read_ms))] : reading ? "the downstream is being asked for rows and sizes …" : "");

function figures({ all, differing, unverified }) {
  return [
    figure("Tables", count(all), "known from changes, verification or the downstream"),
    figure("Differ", all ? count(differing) : "–", differing ? "from the upstream, when they were compared last" : "as far as they were compared", differing ? "bad" : ""),
    figure("Compared", all ? count(all - unverified) : "–", unverified ? `${many(unverified, "table")} never` : all ? "all of them" : "no table is known yet"),
  ];
}

const SOURCES = { downstream: "The downstream", measures: "What tasks counted", verified: "What was verified" };

const unanswered = (errors, around) =>
  Object.entries(errors).map(([source, why]) => h("section", { class: "held warn", id: `error-${source}` }, h("p", {}, h("strong", {}, `${SOURCES[source] ?? source} can't be read: `), plain(why), ". ", h("a", { class: "link", href: link(around, {}, "doctor") }, "Doctor"), " checks what it needs.")));

function filters({ count: found, all }, around) {
  const only = around.query.get("only") ?? "";
  const search = later((text) => change(around, "find", text));
  const tab = (text, value) => h("button", { type: "button", class: "tab", "aria-pressed": String(only === value), onclick: () => change(around, "only", value) }, text);
  return h(
    "div",
    { class: "strip" },
    h("input", { type: "search", id: "find", placeholder: "Search by name", "aria-label": "Search by name", value: around.query.get("find") ?? "", oninput: (event) => search(event.target.value.trim()) }),
    h("div", { class: "tabs" }, tab("All", ""), tab("Differ", "differs"), tab("Never compared", "unverified")),
    h("span", { class: "quiet push" }, found === all ? "" : `${count(found)} of ${count(all)}`),
  );
}

function change(around, key, value) {
  around.setQuery(key, value);
  around.setQuery("page", "");
  around.lookAgain();
}

const COLUMNS = [
  ["name", "Table", ""],
  ["rows", "Rows", "number"],
  ["bytes", "Size", "number wide"],
  ["changes", "Changes", "number"],
  ["recent", "Last day", "wide"],
  ["changed", "Last change", "number wide"],
  ["verified", "Compared", ""],
];

function rows(list, around) {
  if (!list.tables.length) return h("div", { id: "rows" }, list.all ? empty("No such table.", "Search for a part of its name.") : empty("No table is known yet.", "Tables appear here once something of them was applied."));
  return h(
    "div",
    { class: "scroll", id: "rows" },
    h("table", { class: "table hover" }, h("thead", {}, h("tr", {}, COLUMNS.map((column) => heading(column, around)))), h("tbody", {}, list.tables.map((table) => row(table, around)))),
  );
}

function heading([key, text, kind], around) {
  const sort = around.query.get("sort") || "name";
  const down = around.query.get("down") === "1";
  const sorted = sort === key ? (down ? "descending" : "ascending") : null;
  const turn = () => {
    around.setQuery("down", sorted ? (down ? "" : "1") : key === "name" ? "" : "1");
    change(around, "sort", key === "name" ? "" : key);
  };
  return h("th", { class: kind, "aria-sort": sorted }, h("button", { class: "bare sort", type: "button", onclick: turn }, text, h("span", { class: "arrow", "aria-hidden": "true" }, sorted ? (down ? "↓" : "↑") : "")));
}

function row(table, around) {
  return h(
    "tr",
    { id: `table-${table.name}` },
    h(
      "td",
      {},
      h("a", { href: link(around, { table: table.name }), onclick: (event) => go(event, around, table.name) }, name(table.name)),
      table.target && table.target !== table.name && h("div", { class: "quiet" }, "→ ", name(table.target)),
      table.problem && h("div", { class: "bad-text" }, plain(table.problem)),
    ),
    h("td", { class: "number" }, table.rows === null ? "–" : `≈ ${count(table.rows)}`),
    h("td", { class: "number wide" }, size(table.bytes)),
    h("td", { class: "number", title: kinds(table) }, count(table.changes)),
    h("td", { class: "wide" }, spark(table.hours)),
    h("td", { class: "number wide" }, table.changed_ts ? when(tsoMs(table.changed_ts), ago(table.changed_ms)) : "–"),
    h("td", {}, verdict(table)),
  );
}

// Changes in each of the last 24 hours, the present one on the right.
function spark(hours) {
  const most = Math.max(0, ...hours);
  if (!most) return h("span", { class: "quiet" }, "–");
  const [wide, high] = [4, 18];
  const text = `Changes by hour over the last day: ${count(hours.at(-1))} in this hour, at most ${count(most)}`;
  return s(
    "svg",
    { class: "spark", width: wide * hours.length, height: high, role: "img", "aria-label": text },
    s("title", {}, text),
    hours.map((value, n) => value > 0 && s("rect", { x: n * wide, width: wide - 1, y: high - Math.max(1.5, (value / most) * high), height: Math.max(1.5, (value / most) * high) })),
  );
}

const kinds = ({ inserts, updates, deletes }) => `${count(inserts)} inserted, ${count(updates)} updated, ${count(deletes)} deleted`;

function verdict({ verified, differs }) {
  if (!verified) return h("span", { class: "quiet" }, "never");
  const text = verified.problem ? "not compared" : differs ? `${many(verified.differences, "row differs", "rows differ")}` : "equal";
  return h("div", { class: "verdict" }, h("span", { class: `state ${differs ? "bad" : "good"}`, title: HOW[verified.how] ?? verified.how }, text), h("span", { class: "quiet small" }, when(verified.at_ms, ago(verified.at_ms))));
}

/** A button that has tables compared, and leads to how far that is. */
export function compares(tables, text, around, kind = "") {
  if (!around.dags.verify?.there || !around.dags.verify.may) return around.dag("verify", text, { kindOfLink: "button" });
  return button(text, async () => {
    const run = await around.order("verify", { tables });
    if (run) location.assign(link(around, { run }, "jobs"));
  }, { kind });
}

export function link(around, values, page = "") {
  const found = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  if (around.pipeline) found.set("pipeline", around.pipeline);
  return `${page}?${found}`;
}

function go(event, around, table) {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "");
  around.setQuery("table", table);
  around.lookAgain();
  scrollTo(0, 0);
}

const turnTo = (page, around) => (around.setQuery("page", page ? String(page) : ""), around.lookAgain());

// One table

function drawOne(found, table, around) {
  const { table: known } = found;
  return [
    h(
      "div",
      { class: "head", id: "title" },
      h("div", {}, h("p", { class: "crumb" }, h("a", { href: link(around, {}), onclick: (event) => (event.preventDefault(), around.setQuery("table", ""), around.lookAgain()) }, "Tables")), h("h1", {}, name(table))),
      h("div", { class: "row" }, h("a", { class: "button", href: link(around, { table }, "transactions") }, "Its transactions"), compares([table], "Compare it", around)),
    ),
    unanswered(found.errors, around),
    known ? facts(known) : h("p", { class: "quiet", id: "nothing" }, "Nothing was applied to a table of this name, and none was compared."),
    known?.verified && compared(known.verified, around),
    past?.columns && columns(past.columns),
    changes(around),
  ];
}

function facts(table) {
  return h(
    "dl",
    { class: "facts", id: "facts" },
    figure("Rows", table.rows === null ? "–" : `≈ ${count(table.rows)}`, table.there ? `${size(table.bytes)} in ${table.target === table.name ? "the downstream" : table.target}` : "not known downstream"),
    figure("Changes applied", count(table.changes), kinds(table)),
    figure("Last change", table.changed_ts ? ago(table.changed_ms) : "–", table.changed_ts ? when(tsoMs(table.changed_ts)) : "none was counted"),
    figure("Compared", table.verified ? when(table.verified.at_ms, ago(table.verified.at_ms)) : "never", table.verified ? HOW[table.verified.how] : "with the upstream", table.differs ? "bad" : ""),
  );
}

function compared(verified, around) {
  const kind = verified.problem || verified.differences ? "bad" : "good";
  const said = verified.problem
    ? [h("strong", {}, "It could not be compared: "), plain(verified.problem)]
    : verified.differences
      ? [h("strong", {}, `${many(verified.differences, "row differs", "rows differ")} `), `of ${many(verified.rows, "row")} that were compared, as of `, when(tsoMs(verified.ts)), "."]
      : [h("strong", {}, `${many(verified.rows, "row")} (${size(verified.bytes)}) compared, all equal, `), "as of ", when(tsoMs(verified.ts)), "."];
  return h("section", { class: `held ${kind}`, id: "compared" }, h("p", {}, said, " ", h("a", { class: "link", href: link(around, { job: verified.job }, "jobs") }, verified.job)));
}

function columns(found) {
  return h(
    "details",
    { class: "card", id: "columns" },
    h("summary", {}, h("h2", {}, `${count(found.length)} columns`)),
    h("div", { class: "scroll" }, h("table", { class: "table tight" }, h("tbody", {}, found.map(([column, type, nullable]) => h("tr", {}, h("td", {}, name(column)), h("td", { class: "mono" }, plain(type)), h("td", { class: "quiet" }, nullable ? "" : "NOT NULL")))))),
  );
}

function changes(around) {
  const on = looks(past);
  const said = past.problem
    ? past.problem
    : past.complete
      ? past.changes.length ? "That is all, as far back as the past is kept." : "No DDL, as far back as the past is kept."
      : past.through && ["Looked through back to ", when(tsoMs(past.through)), "."];
  return card(
    { id: "schema" },
    h("div", { class: "head" }, h("h2", {}, "What DDL made of it"), on && h("span", { class: "state busy" }, "looking back")),
    h("ol", { class: "ddl-past" }, past.changes.map((change) => entry(change, around))),
    h("div", { class: "row" }, h("p", { class: past.problem ? "bad-text" : "quiet" }, typeof said === "string" ? plain(said) : said), !on && !past.complete && !past.problem && button("Look further back", () => ((past.wanted = past.changes.length + ENOUGH), around.lookAgain()))),
    past.problem && past.hint && h("p", {}, "Hint: ", marked(past.hint)),
  );
}

function entry(change, around) {
  const renamed = change.before && change.after && change.before !== change.after;
  return h(
    "li",
    { id: `ddl-${change.commit_ts}` },
    h(
      "div",
      { class: "row" },
      h("a", { href: link(around, { at: change.commit_ts }, "transactions"), title: `commit ts ${change.commit_ts}` }, when(tsoMs(change.commit_ts))),
      h("span", { class: `state ${change.drops ? "bad" : ""}` }, change.kind, change.drops && ", rows are gone"),
      renamed && h("span", { class: "quiet" }, name(change.before), " → ", name(change.after)),
    ),
    change.columns.length > 0 && h("ul", { class: "diff" }, change.columns.map(column)),
    h("pre", { class: "sql" }, plain(change.statement)),
  );
}

function column({ name: called, old, new: now }) {
  const kind = old ? (now ? "changed" : "gone") : "come";
  return h("li", { class: kind }, name(called), " ", old && h("del", { class: "mono" }, plain(old)), old && now && " → ", now && h("ins", { class: "mono" }, plain(now)));
}

export const begin = (around) =>
  addEventListener("popstate", () => {
    const table = new URLSearchParams(location.search).get("table") ?? "";
    around.setQuery("table", table);
    around.lookAgain();
  });
