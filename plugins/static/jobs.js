// What takes long: how far it is, how long it still takes, what people can order of it, how it ended.

import { h } from "./dom.js";
import { ago, clock, count, many, rate, size, span } from "./format.js";
import { timeLine } from "./jobline.js";
import { button, card, copyable, empty, pill, when } from "./parts.js";
import { link } from "./tables.js";
import { marked } from "./values.js";

const opened = new Map();
const SURE = {
  cancel: "It is given up: what it began and can be taken back safely is taken back; what stays is listed here.",
};
const WORDS = { pause: "Pause", resume: "Resume", cancel: "Cancel" };

export async function load(around) {
  const run = around.query.get("run");
  if (run) {
    const begun = (await around.ask("jobs")).jobs.find((job) => job.run?.id === run);
    if (!begun) return { run };
    around.setQuery("job", begun.id);
    around.setQuery("run", "");
  }
  const one = around.query.get("job");
  if (one) {
    if (!opened.has(one)) opened.set(one, "");
    const [[, found], past] = await Promise.all([detail(one, around), around.ask(`jobs/${encodeURIComponent(one)}/timeline`)]);
    return { one: found, past };
  }
  const [found, ...details] = await Promise.all([around.ask("jobs"), ...[...opened.keys()].map((id) => detail(id, around))]);
  return { ...found, details: new Map(details) };
}

async function detail(id, around) {
  try {
    return [id, await around.ask(`jobs/${encodeURIComponent(id)}`, { find: opened.get(id) })];
  } catch (error) {
    return [id, { error: error.message }];
  }
}

export function draw({ jobs, more, actions, details, one, past, run }, around) {
  if (run) return begins(run, around);
  if (one) return drawOne(one, past, around);
  const open = jobs.filter((job) => !["done", "cancelled"].includes(job.state));
  const over = jobs.filter((job) => ["done", "cancelled"].includes(job.state));
  return [
    h("div", { class: "head" }, h("h1", {}, "Jobs"), starts(around)),
    !jobs.length &&
      empty("There are no jobs yet.", "A job is what takes long and a person asks for: a bootstrap, a backfill, a snapshot, a restore. It goes on where it was killed."),
    open.map((job) => opencard(job, details.get(job.id), around)),
    over.length > 0 && list(over, details, around),
    more > 0 && h("p", { class: "quiet" }, `${count(more)} older ones aren't shown; \`sluice jobs\` lists all, \`sluice jobs forget --older-than 30d\` removes what is written down of them.`),
    actions.length > 0 && done(actions),
  ];
}

// One job: where it stands, its past, what was asked for, and its tables.
function drawOne({ job, asked: wanted, result, tables: found, more, error }, past, around) {
  if (!job) return h("p", { class: "message bad" }, error);
  const isOver = ["done", "cancelled"].includes(job.state);
  return [
    h(
      "div",
      { class: "head", id: "title" },
      h("div", {}, h("p", { class: "crumb" }, h("a", { href: link(around, {}) }, "Jobs")), h("div", { class: "row" }, h("h1", {}, job.id), pill(job.state), h("span", { class: "quiet" }, job.touches))),
      h("div", { class: "row" }, orders(job, around)),
    ),
    outcome(job),
    card({ id: `job-${job.id}`, class: "job" }, standing(job, around)),
    timeLine(past, { width: around.width() - 42, now: Date.now(), isOver }),
    card({ id: "asked" }, values("Asked for", wanted), result && values("Result", result), tables(job, { tables: found, more }, around)),
  ];
}

// A run of verify was ordered, and has not written down its job yet.
function begins(run, around) {
  const paused = around.dags.verify?.paused;
  return [
    h("div", { class: "head", id: "title" }, h("h1", {}, "Jobs")),
    h("section", { class: `held ${paused ? "warn" : ""}`, id: "begins", role: "status" }, h("p", {}, paused ? "The DAG is paused in Airflow, so the run waits until it isn't: " : "Airflow starts the comparison, which takes some seconds: ", around.dag("verify", "its run in Airflow", { path: `/runs/${encodeURIComponent(run)}` }), ".")),
  ];
}

// What a verification found.
const outcome = (job) => job.outcome && h("section", { class: `held ${job.outcome.endsWith("not equal") ? "bad" : "good"}`, id: "outcome" }, h("p", {}, h("strong", {}, `${job.outcome}.`)));

const standing = (job, around) => [
  bar(job),
  numbers(job),
  job.message && h("p", { class: "message bad" }, withoutHint(job)),
  job.hint && h("p", {}, h("strong", {}, "Hint: "), marked(job.hint)),
  hint(job, around),
  h("p", { class: "quiet small" }, asked(job, around)),
];

const name = (job, around) => h("a", { href: link(around, { job: job.id }) }, job.id);

const FORMS = [
  ["backfill", "Copy tables again"],
  ["snapshot", "Take a snapshot"],
  ["restore", "Restore"],
  ["verify", "Verify"],
];

function starts(around) {
  return h("div", { class: "row" }, FORMS.filter(([kind]) => around.dags[kind]?.there).map(([kind, text]) => around.dag(kind, text, { kindOfLink: "button" })));
}

function opencard(job, detail, around) {
  return card(
    { id: `job-${job.id}`, class: "job" },
    h(
      "div",
      { class: "head" },
      h("div", { class: "row" }, h("h2", {}, name(job, around)), pill(job.state), h("span", { class: "quiet" }, job.touches)),
      h("div", { class: "row" }, orders(job, around)),
    ),
    standing(job, around),
    details(job, detail, around),
  );
}

function orders(job, around) {
  if (!around.dags.operate?.may) return [];
  return job.orders.map((what) =>
    button(WORDS[what], () => around.order(`jobs/${encodeURIComponent(job.id)}/${what}`, {}), { kind: what === "cancel" ? "danger" : what === "resume" ? "main" : "", sure: SURE[what] ?? "" }),
  );
}

const UNKNOWN = "of an unknown total";

function isKnown(progress) {
  return progress.bytes_in_all || progress.chunks_in_all;
}

function bar({ progress, state }) {
  const known = isKnown(progress);
  const busy = state === "running";
  return h(
    "div",
    { class: `bar ${busy ? "busy" : ""} ${known ? "" : "unknown"}`, role: "progressbar", "aria-label": "copied so far", "aria-valuenow": known ? progress.percent : null, "aria-valuetext": known ? null : UNKNOWN, "aria-valuemin": 0, "aria-valuemax": 100 },
    h("div", { style: known ? { width: `${progress.percent}%` } : busy ? {} : { width: "0" } }),
  );
}

// How much there is in all is an estimate, until all of it was read.
function read({ bytes, bytes_in_all }) {
  return bytes < bytes_in_all ? `${size(bytes)} of about ${size(bytes_in_all)}` : size(bytes);
}

function numbers({ progress, state }) {
  const parts = [];
  if (isKnown(progress)) parts.push([`${progress.percent} %`, progress.bytes_in_all ? read(progress) : `${count(progress.chunks)} of ${many(progress.chunks_in_all, "chunk")}`]);
  else if (state === "running" && progress.bytes) parts.push([size(progress.bytes), UNKNOWN]);
  parts.push([count(progress.rows), progress.rows < progress.rows_in_all ? `of about ${count(progress.rows_in_all)} rows` : progress.rows === 1 ? "row" : "rows"]);
  if (progress.tables) parts.push([`${count(progress.tables_done)} of ${count(progress.tables)}`, progress.tables === 1 ? "table" : "tables"]);
  if (state === "running" && progress.rows_per_s) parts.push([rate(progress.rows_per_s), `rows, ${size(progress.bytes_per_s)}/s`]);
  if (state === "running" && progress.left_s !== null) parts.push([`about ${span(progress.left_s * 1000)}`, "left"]);
  const doing = state === "running" && progress.doing.length > 0;
  return h("div", { class: "measures" }, parts.map(([value, name]) => h("span", {}, h("b", {}, value), ` ${name}`)), doing && h("span", { class: "quiet" }, progress.doing.join(", ")));
}

// An error's text may end with its hint, which the page shows below.
function withoutHint({ message, hint }) {
  const end = hint && [`; ${hint}`, ` Hint: ${hint}`].find((text) => message.endsWith(text));
  return end ? message.slice(0, -end.length) : message;
}

// A job that no process runs and no DAG began continues by the command line.
function hint(job, around) {
  if (!["paused", "failed", "interrupted"].includes(job.state) || job.run) return null;
  return h("p", {}, "It goes on by ", copyable(`sluice jobs resume ${job.id}`, around), " where Sluice is installed.");
}

function asked(job, around) {
  const run = job.run && around.dag(job.run.dag, "its run in Airflow", { path: `/runs/${encodeURIComponent(job.run.id)}` });
  return [
    `Asked for by ${job.by} `,
    when(job.made_ms, ago(job.made_ms)),
    `; ${job.state} since `,
    when(job.since_ms, clock(job.since_ms)),
    job.runner && `, by ${job.runner}`,
    run && [" · ", run],
  ];
}

function details(job, detail, around) {
  return h(
    "details",
    { id: `more-${job.id}`, open: opened.has(job.id), ontoggle: (event) => toggle(job.id, event.currentTarget.open, around) },
    h("summary", {}, job.progress.tables ? "Tables, and what was asked for" : "What was asked for"),
    !detail && opened.has(job.id) && h("p", { class: "quiet" }, "Looking …"),
    detail?.error && h("p", { class: "message bad" }, detail.error),
    detail?.job && [values("Asked for", detail.asked), detail.result && values("Result", detail.result), tables(job, detail, around)],
  );
}

function toggle(id, isOpen, around) {
  if (isOpen === opened.has(id)) return;
  if (isOpen) opened.set(id, "");
  else opened.delete(id);
  around.lookAgain();
}

function values(title, document) {
  const shown = Object.entries(document).filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length));
  if (!shown.length) return null;
  return [h("h3", {}, title), h("dl", { class: "values" }, shown.map(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", { class: "mono" }, text(value))]))];
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function tables(job, detail, around) {
  if (!job.progress.tables) return null;
  return [
    h(
      "div",
      { class: "head" },
      h("h3", {}, "Tables"),
      job.progress.tables > 20 &&
        h("input", { id: `find-${job.id}`, type: "search", placeholder: "Name", "aria-label": "Tables whose names hold this", oninput: (event) => (opened.set(job.id, event.target.value), around.lookAgain()) }),
    ),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "table tight" },
        h("thead", {}, h("tr", {}, h("th", {}, "Table"), h("th", { class: "number" }, "Done"), h("th", { class: "number" }, "Rows"), h("th", { class: "number" }, "Read"))),
        h(
          "tbody",
          {},
          detail.tables.map((table) =>
            h(
              "tr",
              { id: `${job.id}-${table.name}` },
              h("td", {}, table.name),
              h("td", { class: "number" }, isKnown(table) || job.state === "done" ? `${table.percent} %` : "–"),
              h("td", { class: "number" }, count(table.rows)),
              h("td", { class: "number read" }, read(table)),
            ),
          ),
        ),
      ),
    ),
    detail.more > 0 && h("p", { class: "quiet" }, `${count(detail.more)} more; type a part of a name.`),
  ];
}

function list(jobs, found, around) {
  return card(
    { id: "over" },
    h("h2", {}, "Over"),
    jobs.map((job) =>
      h(
        "div",
        { id: `over-${job.id}`, class: "past" },
        h(
          "div",
          { class: "head" },
          h("div", { class: "row" }, h("strong", {}, name(job, around)), pill(job.state), h("span", { class: "quiet" }, job.touches)),
          h("span", { class: "quiet" }, job.outcome && `${job.outcome}, `, job.progress.rows > 0 && `${many(job.progress.rows, "row")}, `, `took ${span(job.since_ms - job.made_ms)}, `, when(job.since_ms, ago(job.since_ms))),
        ),
        job.message && h("p", { class: "quiet" }, withoutHint(job)),
        job.hint && h("p", { class: "quiet" }, "Hint: ", marked(job.hint)),
        details(job, found.get(job.id), around),
      ),
    ),
  );
}

function done(actions) {
  return card(
    { id: "actions" },
    h("h2", {}, "Ordered on these pages"),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "table tight" },
        h("thead", {}, h("tr", {}, h("th", {}, "When"), h("th", {}, "Who"), h("th", {}, "What"), h("th", {}, "What came of it"))),
        h(
          "tbody",
          {},
          actions.map((action) => h("tr", { id: `action-${action.token}` }, h("td", { class: "nowrap" }, when(action.at_ms, ago(action.at_ms))), h("td", {}, action.by), h("td", {}, `${action.what} ${action.about}`), h("td", {}, action.outcome || "unknown"))),
        ),
      ),
    ),
  );
}
