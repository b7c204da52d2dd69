// Small parts that several pages have.

import { h } from "./dom.js";
import { count, moment, utc } from "./format.js";

const KINDS = {
  works: "good",
  done: "good",
  running: "busy",
  idle: "",
  planned: "",
  waits: "warn",
  paused: "warn",
  pausing: "warn",
  interrupted: "warn",
  cancelling: "warn",
  cancelled: "",
  stopped: "bad",
  failed: "bad",
  unknown: "bad",
};
const WORDS = { unknown: "doesn't answer" };

/** How a state is coloured: good, busy, warn, bad, or "". */
export const kindOf = (state) => KINDS[state] ?? "";

/** A state as a pill. */
export const pill = (state, text) => h("span", { class: `state ${kindOf(state)}` }, text ?? WORDS[state] ?? state);

/** A moment, in UTC where the pointer rests; `text` may stand for it, as "2 min ago". */
export const when = (ms, text = moment(ms)) => (ms ? h("time", { datetime: new Date(ms).toISOString(), title: utc(ms) }, text) : text);

/** A figure with its name. */
export const figure = (name, value, more, kind = "") =>
  h("div", { class: `fact ${kind}` }, h("dt", {}, name), h("dd", {}, h("span", { class: "value" }, value), more && h("span", { class: "more" }, more)));

export const card = (props, ...children) => h("section", { ...props, class: `card ${props.class ?? ""}` }, children);

/** What to say where there is nothing yet. */
export const empty = (title, ...more) => h("div", { class: "empty" }, h("p", {}, h("strong", {}, title)), more.map((each) => h("p", {}, each)));

/** A button; `danger`, `main` are kinds. It asks again if `sure` is a question. */
export const button = (text, onclick, { kind = "", sure = "", disabled = false, title = null } = {}) =>
  h("button", { class: `button ${kind}`, type: "button", disabled, title, onclick: sure ? (event) => ask(event.currentTarget, sure, onclick) : onclick }, text);

/** Buttons for the pages of a list, of which `page` is shown, counted from 0; none of a single page. */
export const pager = (page, pages, to) =>
  pages > 1 &&
  h(
    "div",
    { class: "strip pager", id: "pager" },
    button("Previous", () => to(page - 1), { disabled: page === 0 }),
    h("span", { class: "quiet" }, `Page ${count(page + 1)} of ${count(pages)}`),
    button("Next", () => to(page + 1), { disabled: page + 1 >= pages }),
  );

function ask(target, question, onclick) {
  const dialog = h(
    "dialog",
    { class: "sure", "aria-label": question },
    h("p", {}, question),
    h(
      "div",
      { class: "row end" },
      h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "No"),
      h("button", { class: "button main", type: "button", onclick: () => { dialog.close(); onclick(); } }, target.textContent),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** A text that can be copied with a click. */
export const copyable = (text, around) =>
  h("button", { class: "copy mono", type: "button", title: "Copy", onclick: () => copy(text, around) }, text.split(/(--[\w-]+)/).map((part, n) => (n % 2 ? h("span", { class: "nowrap" }, part) : part)));

export async function copy(text, around) {
  try {
    await navigator.clipboard.writeText(text);
    around.note("Copied.");
  } catch {
    around.note(`This browser doesn't let it be copied: ${text}`);
  }
}
