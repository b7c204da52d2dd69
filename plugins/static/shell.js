// What is around every page: the pipeline that was chosen, asking again every few seconds while somebody looks, what is
// said when something doesn't answer, and orders.

import { become, h } from "./dom.js";
import { span, zone } from "./format.js";
import { marked } from "./values.js";

const EVERY_MS = 3000;
const LATE_MS = 10_000;
const main = document.getElementById("page");
const tools = document.getElementById("tools");
const notes = document.getElementById("notes");
const query = new URLSearchParams(location.search);
const tags = new Map();

/** What a page gets: who looks, which pipeline, and ways to ask and to order. */
const around = {
  pipeline: query.get("pipeline") ?? "",
  query,
  user: "",
  dags: {},
  ask,
  order,
  note,
  redraw,
  lookAgain,
  dag,
  setQuery,
  width: () => Math.max(280, main.clientWidth - 2 * parseFloat(getComputedStyle(main).paddingLeft)),
};

class Refused extends Error {
  constructor(status, document) {
    const detail = typeof document.detail === "string" ? document.detail : undefined;
    super(document.error ?? detail ?? `Airflow answered with ${status}.`);
    this.status = status;
    this.hint = document.hint ?? "";
    this.transient = status >= 502;
  }
}

function address(path, values = {}) {
  const url = new URL(`api/${path}`, location.href);
  if (around.pipeline) url.searchParams.set("pipeline", around.pipeline);
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/**
 * The JSON at `api/<path>`. What hasn't changed comes without a body. While it is being worked out one waits for it, or
 * gets null if it is not to be waited for.
 */
async function ask(path, values, { waiting = true } = {}) {
  const url = String(address(path, values));
  const kept = tags.get(url);
  const answer = await fetch(url, { headers: kept ? { "If-None-Match": kept.tag } : {}, cache: "no-store" });
  late = Math.max(late, Number(answer.headers.get("X-Late-Ms") ?? 0));
  if (answer.status === 304) return kept.document;
  if (answer.status === 202) {
    if (!waiting) return null;
    await new Promise((resolve) => setTimeout(resolve, 400));
    return ask(path, values);
  }
  const document = await readJson(answer);
  const tag = answer.headers.get("ETag");
  if (tag) {
    if (tags.size > 50) tags.clear();
    tags.set(url, { tag, document });
  }
  return document;
}

async function readJson(answer) {
  const document = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, document);
  return document;
}

/** POST an order; what came of it is said in a note. False if it was refused; the id of the run that it began, if any. */
async function order(path, body) {
  try {
    const document = await post(address(path), body, { "X-Sluice": "1" });
    const run = document.run ? await trigger(document.run) : "";
    note(`${document.message ?? "Done."}${run && ` (${run})`}`, "good");
    tags.clear();
    lookAgain();
    return run || true;
  } catch (error) {
    note(error.hint ? `${error.message} Hint: ${error.hint}` : error.message, "bad");
    return false;
  }
}

async function post(url, body, headers = {}) {
  return readJson(await fetch(url, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) }));
}

/** Trigger a DAG by Airflow's API, as the person who is logged in, with the values that its run `like` had; the run's id. */
async function trigger({ dag_id, conf, like }) {
  const runs = new URL(`../api/v2/dags/${encodeURIComponent(dag_id)}/dagRuns`, location.href);
  const before = like ? await fetch(`${runs}/${encodeURIComponent(like)}`) : null;
  const had = before?.ok ? ((await before.json()).conf ?? {}) : {}; // Airflow may have removed the run
  return (await post(runs, { logical_date: null, conf: { ...had, ...conf } })).dag_run_id;
}

/** Which of these DAGs Airflow has, and whether they are paused: as far as the person may see them. */
async function inAirflow(dags) {
  const found = await Promise.all(
    Object.values(dags).map(async ({ id }) => {
      const answer = await fetch(new URL(`../api/v2/dags/${encodeURIComponent(id)}`, location.href));
      return answer.ok ? answer.json() : null;
    }),
  );
  Object.values(dags).forEach((each, place) => Object.assign(each, { there: found[place] !== null && !found[place].is_stale, paused: Boolean(found[place]?.is_paused) }));
}

/** Say something for a few seconds. */
function note(text, kind = "") {
  const node = h("p", { class: `note ${kind}` }, text, h("button", { class: "bare", "aria-label": "Close", onclick: () => node.remove() }, "×"));
  notes.append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 20_000 : 6000);
}

/** Keep something in the address, so that a reload and a bookmark show the same. */
function setQuery(name, value) {
  if (value) query.set(name, value);
  else query.delete(name);
  const text = query.toString();
  history.replaceState(history.state, "", text ? `?${text}` : location.pathname);
}

/** A link into Airflow: to a DAG, given by its kind. In Airflow's frame it leads the whole window there. */
function dag(kind, text, { path = "", kindOfLink = "link" } = {}) {
  const known = around.dags[kind];
  if (!known?.there) return h("span", { class: "quiet", title: `Airflow has no DAG ${known?.id ?? kind}` }, text);
  return h("a", { class: kindOfLink, href: `../dags/${encodeURIComponent(known.id)}${path}`, onclick: outward }, text);
}

// A frame may not lead its parent elsewhere; a link of the parent's own may.
export function outward(event) {
  if (window.parent === window || event.metaKey || event.ctrlKey) return;
  event.preventDefault();
  const link = window.parent.document.createElement("a");
  link.href = event.currentTarget.href;
  window.parent.document.body.append(link);
  link.click();
  link.remove();
}

let page;
let latest;
let timer;
let lastGood = 0;
let asking = false;
let again = false; // somebody wanted to look while it was being asked
let late = 0; // how old (ms) what was answered is, where a new answer takes long

async function look() {
  clearTimeout(timer);
  again = asking;
  if (asking) return;
  if (!document.hidden) {
    asking = true;
    late = 0;
    const since = Date.now();
    const patience = setInterval(() => {
      latest = { ...latest, slow: Date.now() - since };
      redraw();
    }, LATE_MS / 2);
    try {
      const document = await page.load(around);
      latest = { document, error: null, late };
      lastGood = Date.now() - late;
    } catch (error) {
      latest = { document: latest?.document, error };
    }
    clearInterval(patience);
    asking = false;
    redraw();
  }
  timer = setTimeout(look, again ? 0 : latest?.error ? 2 * EVERY_MS : (page.everyMs ?? EVERY_MS));
}

function lookAgain() {
  clearTimeout(timer);
  timer = setTimeout(look, 0);
}

function redraw() {
  if (!latest) return;
  const wanted = h("main", { id: "page" });
  if (latest.error) wanted.append(failed(latest.error));
  else if (latest.slow || latest.late > LATE_MS) wanted.append(slow());
  if (latest.document !== undefined) {
    try {
      wanted.append(...[page.draw(latest.document, around)].flat(9).filter(Boolean));
    } catch (error) {
      console.error(error);
      wanted.append(failed(error));
    }
  } else wanted.prepend(h("div", { class: "head", id: "title" }, h("h1", {}, document.querySelector(".top a[aria-current]").textContent)));
  wanted.append(h("p", { id: "zone", class: "quiet small" }, `Times in ${zone()}.`));
  become(main, wanted);
  // What can be scrolled is so by keyboard, too.
  for (const each of main.querySelectorAll(".scroll, .sql")) {
    if (each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}

function failed(error) {
  const stale = latest.document !== undefined && lastGood ? `What is below is ${span(Date.now() - lastGood)} old.` : "";
  const anonymous = error.status === 401;
  return h(
    "section",
    { class: "failed", id: "failed", role: "alert" },
    h("h2", {}, anonymous ? "You are logged out" : error.status ? (error.transient ? "This doesn't answer" : "This can't be shown") : "Airflow doesn't answer"),
    h("p", {}, error.message),
    error.hint && h("p", {}, h("strong", {}, "Hint: "), marked(error.hint)),
    stale && h("p", { class: "quiet" }, stale),
    anonymous
      ? h("a", { class: "button", href: "../", onclick: outward }, "Log in")
      : h("button", { class: "button", onclick: lookAgain }, "Try again"),
  );
}

function slow() {
  const old = latest.document !== undefined && `What is below is ${span(Date.now() - lastGood)} old: `;
  return h("p", { id: "slow", class: "quiet", role: "status" }, old, `${old ? "a" : "A"}n answer takes long${latest.slow ? `, it was asked for ${span(latest.slow)} ago` : ""}.`);
}

function drawTools() {
  const { pipelines } = around;
  const selector =
    pipelines.length > 1 &&
    h(
      "label",
      { class: "selector" },
      h("span", {}, "Pipeline"),
      h(
        "select",
        { id: "pipeline", onchange: (event) => choose(event.target.value) },
        pipelines.map((each) => h("option", { value: each.name, selected: each.name === around.pipeline }, each.title)),
      ),
    );
  tools.replaceChildren(...[selector, h("span", { class: "who", title: "Who you are in Airflow" }, around.user)].filter(Boolean));
}

function choose(name) {
  setQuery("pipeline", name);
  location.reload();
}

// The other pages are about the same pipeline.
function carryPipeline() {
  for (const link of document.querySelectorAll(".top nav a")) {
    const url = new URL(link.href);
    if (around.pipeline) url.searchParams.set("pipeline", around.pipeline);
    link.href = url;
  }
}

async function learn() {
  const known = await ask("context");
  await inAirflow(known.dags);
  Object.assign(around, known);
  drawTools();
  carryPipeline();
}

async function start() {
  try {
    [page] = await Promise.all([import(`./${document.body.dataset.page}.js`), learn()]);
  } catch (error) {
    latest = { error };
    page ??= { load: () => undefined, draw: () => [] };
    redraw();
    setTimeout(start, LATE_MS);
    return;
  }
  addEventListener("resize", () => requestAnimationFrame(redraw));
  document.addEventListener("visibilitychange", () => document.hidden || lookAgain());
  page.begin?.(around);
  look();
}

start();
