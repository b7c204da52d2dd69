// What became of looking at the data's quality: the newest run suite by suite, how it was over time, the Data Docs.

import { h, s } from "./dom.js";
import { ago, clock, count, day, many, minute, moment, span } from "./format.js";
import { card, empty, figure, when } from "./parts.js";
import { link } from "./tables.js";
import { name, plain } from "./values.js";

export const everyMs = 8000;

const KIND = { passed: "good", warned: "warn", failed: "bad", paused: "bad", error: "bad" };
const WORD = { passed: "passed", warned: "warned", failed: "failed", paused: "paused the pipeline", error: "could not be looked at" };
const ON = { downstream: "the downstream", lake: "the lake", copy: "a restored copy", replication: "the replication" };

export const load = (around) => around.ask("quality");

export function draw({ suites, runs, docs }, around) {
  const page = around.query.get("docs");
  if (page !== null && docs) return drawDocs(page, around);
  return [
    h("div", { class: "head", id: "title" }, h("h1", {}, "Quality"), h("div", { class: "row" }, docs && h("a", { class: "button", href: link(around, { docs: "index.html" }), onclick: open(around, "index.html") }, "Data Docs"), around.dag("quality", "Look now", { kindOfLink: "button" }))),
    runs.length ? summary(runs) : empty("The data's quality was not looked at yet.", "`sluice quality init` proposes what to expect of each table; the DAG quality looks at it."),
    runs.length > 0 && trend(runs, around),
    suites.length > 0 && newest(suites, docs, around),
  ];
}

function summary(runs) {
  const [last] = runs;
  const good = runs.findIndex((run) => !run.failed && !run.states.error);
  return h(
    "dl",
    { class: "facts", id: "facts" },
    figure("Looked at", when(last.at_ms, ago(last.at_ms)), `${many(last.suites, "suite")} in ${span(last.seconds * 1000)}`),
    figure("Met", `${count(last.expectations - last.failed)} of ${count(last.expectations)}`, "expectations, in the newest run", last.failed ? "bad" : ""),
    figure("All met last", good < 0 ? "–" : when(runs[good].at_ms, ago(runs[good].at_ms)), good < 0 ? `in none of the last ${many(runs.length, "run")}` : good === 0 ? "in the newest run" : `in the run ${good === 1 ? "before" : `${count(good)} before`}`),
  );
}

const HIGH = 84;
const WIDEST = 26;

// A bar a run, the newest on the right: how many expectations were met and not met.
function trend(runs, around) {
  const wide = around.width() - 42;
  const shown = runs.slice(0, Math.max(12, Math.floor(wide / 9))).reverse();
  const step = Math.min(WIDEST, wide / shown.length);
  const most = Math.max(1, ...shown.map((run) => run.expectations));
  const bars = shown.map((run, i) => {
    const failed = run.failed ? Math.max(4, (run.failed / most) * HIGH) : 0;
    const all = Math.max(4, (run.expectations / most) * HIGH);
    const [left, width] = [i * step + step * 0.14, step * 0.72];
    return s(
      "g",
      { class: run.states.error ? "run error" : "run" },
      s("title", {}, `${moment(run.at_ms)}: ${count(run.expectations - run.failed)} of ${count(run.expectations)} met`),
      s("rect", { class: "hit", x: i * step, y: 0, width: step, height: HIGH }),
      s("rect", { class: "met", x: left, y: HIGH - all, width, height: Math.max(0, all - failed - (failed && 1)), rx: 1.5 }),
      failed > 0 && s("rect", { class: "failed-part", x: left, y: HIGH - failed, width, height: failed, rx: 1.5 }),
    );
  });
  const at = ({ at_ms }) => when(at_ms, wide < 500 ? `${day(at_ms)}, ${minute(at_ms)}` : moment(at_ms));
  const reach = Math.max(step * shown.length, 1);
  return card(
    { id: "trend" },
    h("div", { class: "head" }, h("h2", {}, `The last ${many(shown.length, "run")}`), h("div", { class: "row" }, h("span", { class: "legend" }, "met"), h("span", { class: "legend bad" }, "not met"))),
    s("svg", { class: "trend", viewBox: `0 0 ${reach} ${HIGH}`, width: reach, height: HIGH, role: "img", "aria-label": "Expectations met and not met, run by run" }, bars),
    h("div", { class: "head quiet small", style: { width: `${reach}px`, "max-width": "100%" } }, h("span", {}, at(shown[0])), shown.length > 6 && h("span", {}, at(shown.at(-1)))),
  );
}

function newest(suites, docs, around) {
  const order = Object.keys(KIND).reverse();
  const sorted = [...suites].sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state) || a.suite.localeCompare(b.suite));
  return card({ id: "suites", class: "flush" }, h("div", { class: "strip" }, h("h2", {}, "The newest run")), h("div", { class: "scroll" }, h("table", { class: "table" }, h("tbody", {}, sorted.map((suite) => row(suite, docs, around))))));
}

function row(suite, docs, around) {
  const met = suite.expectations - suite.failed;
  return h(
    "tr",
    { id: `suite-${suite.id}` },
    h("td", { class: "fit" }, h("span", { class: `state ${KIND[suite.state] ?? ""}` }, WORD[suite.state] ?? suite.state)),
    h(
      "td",
      {},
      h("strong", {}, suite.on === "replication" ? "Replication" : name(suite.suite)),
      h("span", { class: "quiet" }, ` on ${ON[suite.on] ?? suite.on}, `, when(suite.at_ms, clock(suite.at_ms))),
      suite.message && h("p", { class: "bad-text" }, plain(suite.message)),
      suite.failures.length > 0 && h("ul", { class: "failures" }, suite.failures.map(failure)),
    ),
    h("td", { class: "number" }, `${count(met)} of ${count(suite.expectations)}`),
    h("td", { class: "number" }, docs && suite.page && h("a", { href: link(around, { docs: suite.page }), onclick: open(around, suite.page) }, "Details")),
  );
}

const failure = (one) => h("li", { class: one.severity }, h("span", { class: "mono" }, plain(one.expectation)), one.about && [" of ", name(one.about)], ": ", plain(one.observed), h("span", { class: "quiet" }, one.severity === "pause" ? " (pauses the pipeline)" : one.severity === "warn" ? " (warns)" : ""));

function open(around, page) {
  return (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    around.setQuery("docs", page);
    around.redraw();
  };
}

// Great Expectations' pages in a frame: they have no scripts here, whatever stands in them.
function drawDocs(page, around) {
  const path = [around.pipeline || "-", ...page.split("/")].map(encodeURIComponent).join("/");
  const address = new URL(`api/quality/docs/${path}`, location.href);
  return [
    h("div", { class: "head", id: "title" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: link(around, {}), onclick: (event) => (event.preventDefault(), around.setQuery("docs", ""), around.redraw()) }, "Quality")), h("h1", {}, "Data Docs")), h("a", { class: "button", href: address, target: "_blank", rel: "noopener" }, "In a window of their own")),
    h("iframe", { id: "docs", class: "docs", src: address, title: "Data Docs" }),
  ];
}
