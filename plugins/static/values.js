// Values and names that come from other people's data, so that what is there is what one sees.

import { h } from "./dom.js";
import { count, size } from "./format.js";

// Characters that are not seen, or that turn round the order of what follows, and so could make a text look like another.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A text of which nothing stays unseen: parts for `h`. */
export function plain(text) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    const code = match[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(text.slice(at, match.index), h("span", { class: "unseen", title: `The character U+${code}` }, `U+${code}`));
    at = match.index + match[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}

/** A sentence of Sluice's own: what stands in backticks, such as a command, as code. */
export function marked(text) {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, n) => (n % 2 ? h("code", {}, plain(part)) : plain(part))) : plain(text);
}

/** A name, set apart from what is around it. */
export const name = (text, props = {}) => h("bdi", { class: "name", ...props }, plain(text ?? ""));

/** A value of a row as the server shows it; `whole` is a function that fetches all of it. */
export function value(shown, whole) {
  if (shown === null) return h("span", { class: "none" }, "–");
  if (shown.kind === "null") return h("span", { class: "null" }, "NULL");
  if (shown.kind === "text" && shown.size === 0) return h("span", { class: "null", title: "A text without characters" }, "''");
  const text = shown.kind === "bytes" ? `0x${shown.text}` : shown.text;
  return h(
    "span",
    { class: `value ${shown.kind}` },
    h("bdi", {}, plain(text)),
    shown.cut && "… ",
    shown.cut && h("button", { class: "bare link", type: "button", onclick: whole }, shown.kind === "bytes" ? `all ${size(shown.size)}` : `all ${count(shown.size)} characters`),
  );
}

/** A wait of a moment after the last of several calls. */
export function later(call, ms = 250) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(call, ms, ...values);
  };
}
