// Everything that the pipeline needs, checked: what is not right comes first, each with its way out.

import { h } from "./dom.js";
import { count, many } from "./format.js";
import { card, figure } from "./parts.js";
import { marked } from "./values.js";

export const everyMs = 30_000;

const STATES = [["fail", "bad", "fails"], ["warn", "warn", "warning"], ["ok", "good", "ok"]];

export const load = (around) => around.ask("doctor");

export function draw({ results }) {
  const of = (state) => results.filter((each) => each.state === state);
  const [failed, warned] = [of("fail").length, of("warn").length];
  return [
    h("div", { class: "head", id: "title" }, h("h1", {}, "Doctor"), h("p", { class: "quiet" }, "the checks of ", h("code", {}, "sluice doctor"), ", at most a minute old")),
    h("dl", { class: "facts", id: "facts" }, figure("Checks", count(results.length)), figure("Fail", count(failed), failed ? "do these first" : "none", failed ? "bad" : ""), figure("Warnings", count(warned), warned ? "replication goes on" : "none")),
    card({ id: "checks" }, h("ul", { class: "checks" }, STATES.flatMap(([state, kind, text]) => of(state).map((each) => check(each, kind, text))))),
    h("p", { class: "quiet", id: "read" }, failed ? `${many(failed, "check")} failed.` : "Nothing fails."),
  ];
}

const check = ({ area, text, hint, state }, kind, word) =>
  h("li", {}, h("span", { class: `state ${kind}` }, word), h("strong", {}, area), h("div", { class: "message" }, marked(text), state !== "ok" && hint && h("p", { class: "quiet" }, "→ ", marked(hint))));
