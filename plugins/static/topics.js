// What each topic of a Kafka downstream got, as a part of the page Overview.

import { h } from "./dom.js";
import { count, many, size, span } from "./format.js";
import { card, empty, pager } from "./parts.js";
import { later, name } from "./values.js";

const PAGE = 20;

export const ask = ({ downstream }, around) =>
  downstream.topics ? around.ask("topics", { find: around.query.get("topic"), page: around.query.get("topics") }, { waiting: false }).catch(() => null) : null;

export function topics(found, { downstream }, around) {
  const behind = downstream.lag_ms === null ? "" : `, each complete through the checkpoint, ${span(downstream.lag_ms)} behind`;
  const sums = `${count(found.messages)} messages, ${size(found.bytes)}${found.errors ? `, ${many(found.errors, "error")} of sending` : ""}`;
  return card(
    { id: "topics", class: "flush" },
    h("div", { class: "strip" }, h("h2", {}, "Topics"), search(around), h("span", { class: "quiet push" }, found.count === found.all ? `${many(found.all, "topic")}${behind}: ${sums}` : `${count(found.count)} of ${many(found.all, "topic")}`)),
    found.topics.length ? rows(found.topics, downstream) : empty("No such topic.", "Search for a part of its name."),
    pager(Number(around.query.get("topics") ?? 0), Math.ceil(found.count / PAGE), (page) => change(around, "topics", page ? String(page) : "")),
  );
}

function search(around) {
  const look = later((text) => (around.setQuery("topics", ""), change(around, "topic", text)));
  return h("input", { type: "search", id: "topic", placeholder: "Search by name", "aria-label": "Search topics by name", value: around.query.get("topic") ?? "", oninput: (event) => look(event.target.value.trim()) });
}

function change(around, key, value) {
  around.setQuery(key, value);
  around.lookAgain();
}

const rows = (found, { lag_ms }) =>
  h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "table hover" },
      h("thead", {}, h("tr", {}, h("th", {}, "Topic"), h("th", { class: "number" }, "Messages"), h("th", { class: "number" }, "Size"), h("th", { class: "number" }, "Errors"), h("th", { class: "number wide" }, "Behind"))),
      h("tbody", {}, found.map((topic) => row(topic, lag_ms))),
    ),
  );

const row = ({ topic, messages, bytes, errors }, lag) =>
  h(
    "tr",
    { id: `topic-${topic}` },
    h("td", {}, name(topic)),
    h("td", { class: "number" }, count(messages)),
    h("td", { class: "number" }, size(bytes)),
    h("td", { class: "number" }, errors ? h("span", { class: "bad-text" }, count(errors)) : "0"),
    h("td", { class: "number wide" }, span(lag)),
  );
