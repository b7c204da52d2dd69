// The way of the data, from the pumps to the downstream, as it is now; what holds it back; how far behind it was.

import { lineChart } from "./chart.js";
import { h } from "./dom.js";
import { ago, clock, count, many, rate, span, tsoMs } from "./format.js";
import { searched } from "./incidents.js";
import { button, card, figure, pill, when } from "./parts.js";
import { picture } from "./picture.js";
import { link } from "./tables.js";
import { ask, topics } from "./topics.js";
import { marked } from "./values.js";

const HOUR = 3_600_000;
const SPANS = [["", "1 h", HOUR], ["day", "24 h", 24 * HOUR], ["week", "7 d", 168 * HOUR]];

export async function load(around) {
  const asked = around.ask("overview");
  const [now, past, found] = await Promise.all([
    asked,
    around.ask("lag", { span: around.query.get("span") }, { waiting: false }).catch(() => null),
    asked.then((overview) => ask(overview, around)),
  ]);
  return { now, past, found };
}

export function draw({ now, past, found }, around) {
  return [
    h("div", { class: "head" }, h("h1", {}, "Overview"), actions(now, around)),
    headline(now, around),
    card({ id: "way", class: "way" }, picture(now, around.width())),
    numbers(now),
    found && topics(found, now, around),
    pastCard(past, now, around),
    now.overrides.length > 0 && overrides(now),
    h("div", { class: "pair" }, pumps(now), next(around)),
  ];
}

function headline({ held_back, errors, downstream, landing, as_of_ms }, around) {
  const others = Object.entries(errors).filter(([who]) => !held_back.some((text) => text.includes(errors[who])));
  const said = [...held_back, ...others.map(([who, why]) => `${who} doesn't answer: ${why}`)];
  if (!said.length) {
    const asked = ["relay", "downstream"].filter((who) => as_of_ms[who] === undefined);
    if (asked.length) return h("section", { id: "held", class: "held" }, h("p", {}, `Asking: the ${asked.map((who) => ({ relay: "relay log" })[who] ?? who).join(" and the ")} ${asked.length > 1 ? "have" : "has"} not answered yet.`));
    const text = downstream.lag_ms === null ? "Nothing is applied yet, and nothing is in the way." : "Nothing holds it back.";
    const begins = landing.lag_ms === null && h("p", {}, "It begins with the DAG ", around.dag("replicate", "replicate"), ", which lands and applies as long as it isn't paused.");
    return h("section", { id: "held", class: "held good" }, h("p", {}, h("strong", {}, text)), begins);
  }
  const kind = downstream.state === "works" ? "warn" : downstream.state === "paused" ? "warn" : "bad";
  return h(
    "section",
    { id: "held", class: `held ${kind}` },
    h("h2", {}, "What holds it back"),
    h("ul", {}, said.map(reason)),
  );
}

// What is in the way, and on a line of its own the way out.
function reason(text) {
  const [what, ...hints] = text.split(" Hint: ");
  return h("li", {}, marked(what), hints.map((hint) => h("div", {}, h("strong", {}, "Hint: "), marked(hint))));
}

function actions(now, around) {
  const { operate, replicate } = around.dags;
  const paused = now.downstream.state === "paused" || now.landing.state === "paused";
  return h(
    "div",
    { class: "row" },
    replicate?.there && replicate.paused && h("span", { class: "state warn" }, `the DAG ${replicate.id} is paused`),
    h("a", { class: "button", id: "find-accident", href: searched(around), title: "Deletes and updates of the last 24 hours that stand out, and what takes them back" }, "Find an accident"),
    around.dag("replicate", "Runs in Airflow", { kindOfLink: "button" }),
    operate?.may &&
      (paused
        ? button("Resume", () => around.order("tasks/resume", { which: "both" }), { kind: "main" })
        : button("Pause", () => around.order("tasks/pause", { which: "both" }), {
            sure: "Landing and applying wait until an operator resumes them. Meanwhile the downstream falls behind; nothing is lost.",
          })),
  );
}

function numbers({ at_ms, downstream, landing, relay, archive, verified, errors, as_of_ms }) {
  const asked = (who) => as_of_ms[who] === undefined; // and has never answered
  const unknown = (name, who) => figure(name, "–", errors[who] ? "not known: it didn't answer" : "not known yet");
  const known = errors.downstream && as_of_ms.downstream ? `as it was ${span(at_ms - as_of_ms.downstream)} ago` : "";
  const differ = verified.differences > 0;
  return h(
    "dl",
    { class: "facts", id: "facts" },
    figure("Lag of the downstream", span(downstream.lag_ms), completeness(downstream, known)),
    asked("measures") ? unknown("Applied in the last minute", "measures") : figure("Applied in the last minute", rate(downstream.changes_per_s), `changes, in ${rate(downstream.transactions_per_s, "transactions")}`),
    figure("Landed, not applied", span(relay.waiting_ms), landing.lag_ms === null ? (landing.state === "unknown" ? "not known yet" : "nothing landed yet") : `landing is ${span(landing.lag_ms)} behind`),
    asked("verified") ? unknown("Verified", "verified") : figure(
      "Verified",
      differ ? `${many(verified.differences, "row differs", "rows differ")}` : verified.at_ms ? when(verified.at_ms, ago(verified.at_ms)) : "never",
      differ ? [`in ${many(verified.differing.length, "table")}, compared `, when(verified.at_ms, ago(verified.at_ms))] : verified.at_ms ? verifiedInWords(verified) : "no table was compared yet",
      differ || verified.uncompared?.length ? "bad" : "",
    ),
    asked("archive") ? unknown("Can be restored", "archive") : figure("Can be restored", restorable(archive), archive.snapshots ? many(archive.snapshots, "snapshot") : "no snapshot yet"),
  );
}

function completeness({ state, at_ts }, known) {
  if (at_ts && at_ts !== "0") return ["complete through ", when(tsoMs(at_ts), clock(tsoMs(at_ts))), known && `, ${known}`];
  return state === "unknown" ? "not known yet" : "no checkpoint yet";
}

function verifiedInWords({ equal, uncompared }) {
  const missed = uncompared?.length ?? 0;
  return [equal && `${many(equal, "table")} equal`, missed && `${many(missed, "table")} not compared`].filter(Boolean).join(", ");
}

function restorable({ promised_ts, hi, unrestorable }) {
  if (tsoMs(promised_ts)) return `last ${span(restorableMs({ promised_ts, hi }))}`;
  return unrestorable?.length ? "not all tables now" : "no moment yet";
}

function pastCard(past, now, around) {
  const chosen = SPANS.find(([name]) => name === (around.query.get("span") ?? "")) ?? SPANS[0];
  const choose = (name) => () => (around.setQuery("span", name), around.lookAgain());
  const tab = ([name, text]) => h("button", { type: "button", class: "tab", "aria-pressed": String(name === chosen[0]), onclick: choose(name) }, text);
  const title = h("div", { class: "head" }, h("h2", {}, "Lag and work"), h("div", { class: "tabs", role: "group", "aria-label": "Span" }, SPANS.map(tab)));
  if (!past?.points.length) return card({ id: "lag" }, title, h("p", { class: "quiet waiting" }, past ? "Nothing was measured in this time: no task ran." : "The relay log, which keeps it, has not answered."));
  const to = Date.now();
  // a pipeline that has just begun has its first minutes large
  const from = Math.max(to - chosen[2], Math.min(past.points[0].at_ms - 30_000, to - 300_000));
  const marks = [...ddlMarks(past, around), ...jobMarks(past, around)];
  const wide = around.width() - 42;
  const narrow = wide < 900 ? wide : Math.floor((wide - 24) / 2);
  const of = (key) => past.points.map((point) => [point.at_ms, point[key]]);
  const chart = (id, name, width, height, lines, shown, gapMs) =>
    h("div", { id: `${id}-part`, class: "chart-part" }, h("h3", {}, name, lines.length > 1 && lines.map((line) => h("span", { class: `key ${line.kind}` }, line.name))), lineChart({ id, width, height, from, to, lines, gapMs, shown, marks }));
  const one = (name, values) => [{ name, kind: "one", filled: true, values }];
  const states = (key, last) => [...past.states.map((state) => [state.at_ms, state[key]]), ...(last === null ? [] : [[to, last]])];
  const gapMs = Math.max(45_000, 3 * past.step_ms);
  return card(
    { id: "lag" },
    title,
    chart("lag-chart", "Lag", wide, 200, [...one("Downstream", of("lag_ms")), { name: "Relay log", kind: "two", values: of("land_lag_ms") }], span, gapMs),
    h(
      "div",
      { class: "charts", id: "charts" },
      chart("rows-chart", "Row changes applied", narrow, 120, one("Row changes", of("rows_per_s")), (value) => rate(value), gapMs),
      chart("windows-chart", "Windows landed", narrow, 120, one("Windows", of("windows_per_s")), (value) => rate(value), gapMs),
      chart("errors-chart", "Errors, those retried included", narrow, 120, one("Errors", of("errors")), count, gapMs),
      chart("verified-chart", "Age of the oldest verification", narrow, 120, one("Oldest verification", states("verified_age_ms", now.verified.age_ms)), span, 4 * HOUR),
      chart("restorable-chart", "Restorable range", narrow, 120, one("Every table, for the last", states("restorable_ms", restorableMs(now.archive))), span, 4 * HOUR),
    ),
    marks.length > 0 && h("details", { id: "marks" }, h("summary", {}, marksInWords(marks)), h("ul", { class: "lines" }, marks.sort((a, b) => b.at - a.at).map(markLine))),
  );
}

const restorableMs = ({ promised_ts, hi }) => (tsoMs(promised_ts) && tsoMs(hi) ? tsoMs(hi) - tsoMs(promised_ts) : null);

// DDL is counted by step: the page Transactions shows which it was.
const ddlMarks = ({ points, step_ms }, around) =>
  points
    .filter((point) => point.ddls > 0)
    .map(({ at_ms, ddls }) => ({ kind: "ddl", at: at_ms - step_ms, to: at_ms, text: `${count(ddls)} DDL`, href: link(around, { kind: "ddl", since: new Date(at_ms - 2 * step_ms).toISOString(), until: new Date(at_ms + step_ms).toISOString() }, "transactions") }));

const jobMarks = ({ jobs }, around) =>
  jobs.map((job) => ({ kind: "job", at: job.from_ms, to: job.to_ms, text: `${job.kind} (${job.state}), ${span(job.to_ms - job.from_ms)}`, href: link(around, { job: job.id }, "jobs") }));

function marksInWords(marks) {
  const [ddl, jobs] = ["ddl", "job"].map((kind) => marks.filter((mark) => mark.kind === kind).length);
  return [ddl && `DDL at ${many(ddl, "time")}`, jobs && many(jobs, "run of a job", "runs of jobs")].filter(Boolean).join(", ");
}

const markLine = (mark) => h("li", { id: `mark-${mark.kind}-${mark.at}` }, h("a", { href: mark.href }, when(mark.at)), ` ${mark.text}`);

function overrides({ overrides: waiting }) {
  return card(
    { id: "overrides" },
    h("h2", {}, "Overrides that wait to be met"),
    h(
      "ul",
      { class: "lines" },
      waiting.map((each) =>
        h("li", { id: `override-${each.commit_ts}` }, h("span", { class: "mono" }, each.commit_ts), ` ${each.what ?? each.action ?? "skip"}`, each.why && ` – ${each.why}`, each.by && h("span", { class: "quiet" }, ` by ${each.by}`)),
      ),
    ),
  );
}

function pumps({ pumps: found, errors, as_of_ms }) {
  return card(
    { id: "pumps" },
    h("h2", {}, "Pumps"),
    found.length
      ? h(
          "div",
          { class: "scroll" },
          h(
            "table",
            { class: "table tight" },
            h("thead", {}, h("tr", {}, h("th", {}, "Pump"), h("th", {}, "State"), h("th", { class: "number" }, "Behind"))),
            h(
              "tbody",
              {},
              found.map((pump) =>
                h(
                  "tr",
                  { id: `pump-${pump.node_id}` },
                  h("td", {}, h("span", {}, pump.node_id), h("div", { class: "quiet mono" }, pump.host), pump.capture.map((line) => h("div", { class: "quiet" }, line))),
                  h("td", {}, pill(pump.state, pump.registry_state)),
                  h("td", { class: "number" }, span(pump.lag_ms)),
                ),
              ),
            ),
          ),
        )
      : h("p", { class: "quiet" }, errors.upstream ? `The upstream doesn't answer: ${errors.upstream}` : as_of_ms.upstream ? "None is registered." : "The upstream's registry has not answered yet."),
  );
}

const FORMS = [
  ["operate", "Pause, skip, decide", "Land or apply no further, stop at a moment, skip or replace what was refused"],
  ["verify", "Verify", "Compare both sides at the checkpoint, table by table"],
  ["backfill", "Copy tables again", "Beside replication, without stopping it"],
  ["snapshot", "Take a snapshot", "All tables as of one moment: a restore begins there"],
  ["restore", "Restore", "Tables as they were at a moment, beside what is there now"],
];

function next(around) {
  return card(
    { id: "next" },
    h("h2", {}, "Forms in Airflow"),
    h(
      "ul",
      { class: "forms" },
      FORMS.filter(([kind]) => around.dags[kind]?.there).map(([kind, text, more]) =>
        h("li", {}, around.dag(kind, text), h("div", { class: "quiet" }, more, around.dags[kind].may ? "" : " (your role can't trigger it)")),
      ),
    ),
  );
}

