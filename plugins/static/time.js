// From when to when one can restore: a bar with its holes, the snapshots and drills on it, and a restore from a moment.

import { lineAt, timeBar } from "./timebar.js";
import { h } from "./dom.js";
import { ago, count, iso, many, size, span, tsoMs } from "./format.js";
import { asked, msOf, zoneName } from "./moments.js";
import { button, card, copy, empty, figure, pill, when } from "./parts.js";
import { marked } from "./values.js";

const HOUR = 3_600_000;
const SPANS = [
  ["", "All"],
  ["30d", "30 days", 720 * HOUR],
  ["1d", "Day", 24 * HOUR],
  ["1h", "Hour", HOUR],
];
const form = { until: "", tables: "", planOnly: true };
let find = "";

export const everyMs = 10_000;

export function begin(around) {
  form.until = around.query.get("until") ?? "";
}

export async function load(around) {
  return around.ask("time", { find });
}

export function draw(found, around) {
  if (!Number(found.hi)) {
    return [
      h("div", { class: "head" }, h("h1", {}, "Time")),
      empty("Nothing is archived yet.", "The DAG archive keeps what was landed; once it runs, and there is a snapshot, any moment since can be restored."),
      snapshots(found, around),
    ];
  }
  return [
    h("div", { class: "head" }, h("h1", {}, "Time"), h("div", { class: "row" }, around.dag("snapshot", "Take a snapshot", { kindOfLink: "button" }), around.dag("restore_drill", "Try a restore", { kindOfLink: "button" }))),
    promise(found),
    barCard(found, around),
    restoreCard(found, around),
    troubles(found),
    h("div", { class: "pair" }, snapshots(found, around), drills(found)),
    tables(found, around),
    room(found),
  ];
}

function promise({ promised_ts, whole_from_ts, landed_ts, hi, keep, held_by }) {
  const whole = tsoMs(whole_from_ts);
  const landed = tsoMs(landed_ts);
  return h(
    "dl",
    { class: "facts", id: "promise" },
    whole
      ? figure("Every table can be restored since", when(whole), [`any moment of ${span(tsoMs(hi) - whole)}, through `, when(tsoMs(hi))])
      : figure("Every table can be restored", "not now", "a snapshot is needed: all tables as of one moment"),
    figure("Stays so for moments since", whole ? when(tsoMs(promised_ts)) : "none now", held_by ? `what keeps the oldest part: ${held_by}` : keep.keep ? `kept for ${keep.keep}` : "kept for ever"),
    figure("Archived through", when(tsoMs(hi)), landed > tsoMs(hi) ? `${span(landed - tsoMs(hi))} more are in the relay log` : "all that is landed"),
  );
}

function barCard(found, around) {
  const name = around.query.get("span") ?? "";
  const now = Date.now();
  const known = [found.lo, found.hi, ...found.holes.map((hole) => hole.lo), ...found.snapshots.map((snapshot) => snapshot.ts)];
  const oldest = Math.min(...known.map(tsoMs).filter((ms) => ms > 0));
  const chosen = SPANS.find(([key]) => key === name)?.[2];
  const newest = Math.max(tsoMs(found.landed_ts), tsoMs(found.hi));
  const to = now - newest < 7 * 24 * HOUR ? now : newest;
  const from = chosen ? to - chosen : oldest - (to - oldest) * 0.02;
  const tab = ([key, text]) => h("button", { type: "button", class: "tab", "aria-pressed": String(key === name), onclick: () => (around.setQuery("span", key), around.redraw()) }, text);
  const at = msOf(form.until);
  return card(
    { id: "when" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, "What can be restored"),
      h("div", { class: "row" }, ["whole", "part", "landed", "hole"].map((kind) => h("span", { class: `swatch of-${kind}` }, KINDS[kind])), h("div", { class: "tabs" }, SPANS.map(tab))),
    ),
    timeBar({ found, from, to, at, width: around.width() - 42, choose: (ms) => choose(ms, around) }),
    h("p", { class: "quiet small" }, at ? lineAt(found, at) : form.until ? "A plan says where this moment lies." : "Click on the bar to choose a moment."),
  );
}

const KINDS = { whole: "every table", part: "some tables", landed: "not archived yet", hole: "missing" };

function choose(ms, around) {
  form.until = iso(ms);
  around.setQuery("until", form.until);
  around.redraw();
}

function restoreCard(found, around) {
  const { restore } = around.dags;
  const until = asked(form.until);
  const names = form.tables.split(/[\s,]+/).filter(Boolean);
  const conf = { until, ...(names.length ? { tables: names } : {}), plan_only: form.planOnly };
  const field = (id, label, node, more) => h("div", { class: "field" }, h("label", { for: id }, label), node, more && h("span", { class: "quiet small" }, more));
  const changed = (name) => (event) => {
    form[name] = event.target.value;
    if (name === "until") around.setQuery("until", asked(form.until));
    around.redraw();
  };
  return card(
    { id: "restore" },
    h("h2", {}, "Restore"),
    h(
      "div",
      { class: "form" },
      field("until", "Until when", h("input", { id: "until", type: "text", value: form.until, spellcheck: "false", autocomplete: "off", placeholder: "20m, or yesterday 14:00", oninput: changed("until") }), `Everything committed until then is in. A time without a zone is one of ${zoneName()}.`),
      field("names", "Tables", h("input", { id: "names", type: "text", value: form.tables, spellcheck: "false", autocomplete: "off", placeholder: "all", oninput: changed("tables") }), "Such as shop.orders shop.item*; empty: all."),
      h(
        "label",
        { class: "check" },
        h("input", { id: "plan", type: "checkbox", checked: form.planOnly, onchange: (event) => ((form.planOnly = event.target.checked), around.redraw()) }),
        " Only plan: say what would be done and how long it takes",
      ),
    ),
    h(
      "div",
      { class: "row" },
      restore?.may &&
        restore.there &&
        button(form.planOnly ? "Plan it" : "Restore", () => around.order("time/restore", { until, tables: names, plan_only: form.planOnly }), {
          kind: "main",
          disabled: !until,
          sure: form.planOnly ? "" : `Tables as of ${until} are made beside what is there, in databases named …_restored.`,
        }),
      button("Copy for Airflow's form", () => copy(JSON.stringify(conf), around), { disabled: !until, title: "As JSON, for the form's advanced options" }),
      around.dag("restore", "The DAG in Airflow"),
      restore?.there && !restore.may && h("span", { class: "quiet" }, "Your role in Airflow can't trigger it."),
    ),
  );
}

function troubles({ holes, faults, unknown }) {
  if (!holes.length && !faults.length && !unknown.length) return null;
  return h(
    "section",
    { id: "troubles", class: `held ${holes.length || faults.length ? "bad" : "warn"}` },
    h("h2", {}, "What to know"),
    h(
      "ul",
      {},
      holes.map((hole) => h("li", {}, h("strong", {}, when(tsoMs(hole.lo)), " – ", when(tsoMs(hole.hi)), " is missing: "), hole.why)),
      faults.map((fault) => h("li", {}, fault)),
      unknown.length > 0 && h("li", {}, `${many(unknown.length, "table")} can't be restored now: ${unknown.slice(0, 5).map((table) => `${table.name} (${table.why})`).join(", ")}${unknown.length > 5 ? ` and ${count(unknown.length - 5)} more` : ""}. A snapshot helps.`),
    ),
  );
}

function snapshots({ snapshots: found, keep, whole_from_ts }, around) {
  const shown = [...found].sort((one, other) => (BigInt(other.ts) > BigInt(one.ts) ? 1 : -1)).slice(0, 12);
  return card(
    { id: "snapshots" },
    h("div", { class: "head" }, h("h2", {}, "Snapshots"), h("span", { class: "quiet small" }, keep.snapshots_every ? `one every ${keep.snapshots_every}` : "made by hand")),
    !shown.length && h("p", { class: "quiet" }, Number(whole_from_ts) ? "There is none yet: a restore begins with the first change that is kept." : "There is none: nothing can be restored before there is one."),
    shown.map((snapshot) =>
      h(
        "div",
        { id: `snapshot-${snapshot.id}`, class: "past" },
        h("div", { class: "head" }, h("button", { type: "button", class: "link", title: "Choose this moment", onclick: () => choose(tsoMs(snapshot.ts), around) }, when(tsoMs(snapshot.ts))), h("span", { class: "quiet" }, size(snapshot.bytes))),
        h("p", { class: "quiet small" }, `${many(snapshot.tables, "table")}, ${many(snapshot.rows, "row")}, from ${snapshot.made_from}`),
      ),
    ),
  );
}

function drills({ drills: found, keep }) {
  return card(
    { id: "drills" },
    h("div", { class: "head" }, h("h2", {}, "Drills"), h("span", { class: "quiet small" }, keep.drills_every ? `one every ${keep.drills_every}` : "made by hand")),
    !found.length && h("p", { class: "quiet" }, "Restoring was never tried. A drill restores some tables, verifies them, and drops them."),
    found.slice(0, 8).map((drill) =>
      h(
        "div",
        { id: `drill-${drill.id}`, class: "past" },
        h("div", { class: "head" }, h("div", { class: "row" }, pill(drill.state), drill.ts ? h("span", {}, "as of ", when(tsoMs(drill.ts))) : null), h("span", { class: "quiet" }, when(drill.at_ms, ago(drill.at_ms)))),
        h("p", { class: "quiet small" }, drill.message || (drill.rows !== null && `${many(drill.tables, "table")} with ${many(drill.rows, "row")} in ${span(drill.seconds * 1000)}`)),
        drill.hint && h("p", { class: "small" }, "Hint: ", marked(drill.hint)),
      ),
    ),
  );
}

function tables({ tables: found, tables_in_all, tables_found }, around) {
  return card(
    { id: "tables" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, many(tables_in_all, "table")),
      h("input", { id: "find", type: "search", placeholder: "Name", "aria-label": "Tables whose names hold this", oninput: (event) => ((find = event.target.value), around.lookAgain()) }),
    ),
    found.length
      ? h(
          "div",
          { class: "scroll" },
          h(
            "table",
            { class: "table tight" },
            h("thead", {}, h("tr", {}, h("th", {}, "Table"), h("th", {}, "Can be restored since"), h("th", {}, "Until"))),
            h(
              "tbody",
              {},
              found.map((table) =>
                h("tr", { id: `table-${table.name}-${table.from_ts}` }, h("td", {}, table.name), h("td", { class: "nowrap" }, when(tsoMs(table.from_ts))), h("td", { class: "nowrap" }, table.until_ts === null ? h("span", { class: "quiet" }, "now") : [when(tsoMs(table.until_ts)), ", when it was dropped"])),
              ),
            ),
          ),
        )
      : h("p", { class: "quiet" }, find ? `No name holds “${find}”.` : "None can be restored yet."),
    tables_found > found.length && h("p", { class: "quiet" }, `${count(tables_found - found.length)} more; type a part of a name.`),
  );
}

const SPACES = { relay: "Relay log", log: "Archive", lake: "Lake", snapshots: "Snapshots" };

function room({ spaces, disks, url }) {
  return card(
    { id: "room" },
    h("h2", {}, "Room"),
    h("div", { class: "measures" }, Object.entries(SPACES).map(([name, text]) => h("span", {}, h("b", {}, size(spaces[name].bytes)), ` ${text}, ${size(Math.round(spaces[name].growth.bytes_a_day))} a day`))),
    disks.map((disk) => h("p", { class: "quiet" }, `${size(disk.free_bytes)} of ${size(disk.total_bytes)} are free where ${disk.what.map((name) => SPACES[name].toLowerCase()).join(", ")} ${disk.what.length > 1 ? "lie" : "lies"}`, disk.full_in_days === null || disk.full_in_days > 3650 ? "." : `: full in ${count(Math.floor(disk.full_in_days))} days at this rate.`)),
    h("p", { class: "quiet small mono" }, url),
  );
}
