// Elements, made from names and values. Whatever comes from outside becomes text or an attribute's value here, never
// markup: there is no other way to put something into a page.

const SVG = "http://www.w3.org/2000/svg";
const DROPPED = new Set([null, undefined, false, ""]);

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith("on")) node[name] = value;
    else if (name === "href") setLink(node, value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(node, child);
    else if (child instanceof Node) node.append(child);
    else if (!DROPPED.has(child)) node.append(document.createTextNode(String(child)));
  }
}

// A link leads to where these pages, or Airflow's, are: a scheme in a value from outside leads nowhere.
function setLink(node, value) {
  if (value === null || value === undefined) return;
  const url = new URL(String(value), document.baseURI);
  if (url.protocol === "http:" || url.protocol === "https:") node.setAttribute("href", String(value));
}

/**
 * An HTML element: h("p", {class: "quiet", style: {width: "3%"}, onclick}, "text", other). What is null, false or empty
 * is left out. An `id` tells `become` which element it is from one drawing to the next.
 */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** The same of SVG. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

const HANDLERS = ["onclick", "oninput", "onchange", "onkeydown", "onsubmit", "onpointermove", "onpointerleave", "onpointerdown", "ontoggle"];
const LIVE = new Set(["INPUT", "SELECT", "TEXTAREA"]);

/** Make `there` what `wanted` is with as few changes as can be: what is focused, scrolled or open stays so. */
export function become(there, wanted) {
  if (there.nodeType !== wanted.nodeType || there.nodeName !== wanted.nodeName || there.id !== wanted.id) {
    there.replaceWith(wanted);
    return;
  }
  if (there.nodeType === Node.TEXT_NODE) {
    if (there.data !== wanted.data) there.data = wanted.data;
    return;
  }
  becomeAttributes(there, wanted);
  for (const handler of HANDLERS) if (there[handler] !== wanted[handler]) there[handler] = wanted[handler];
  if (LIVE.has(there.nodeName) && there === document.activeElement) return;
  becomeChildren(there, wanted);
}

function becomeAttributes(there, wanted) {
  for (const { name } of [...there.attributes]) {
    const keeps = name === "open" && there.nodeName === "DETAILS";
    if (!wanted.hasAttribute(name) && !keeps && name !== "style") there.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name === "style") continue;
    if (there.getAttribute(name) !== value) there.setAttribute(name, value);
  }
  if (there.style.cssText !== wanted.style.cssText) there.style.cssText = wanted.style.cssText;
}

function becomeChildren(there, wanted) {
  const keyed = new Map();
  for (const child of there.children) if (child.id) keyed.set(child.id, child);
  let at = there.firstChild;
  for (const child of [...wanted.childNodes]) {
    const same = child.id && keyed.get(child.id);
    if (same && same !== at) there.insertBefore(same, at);
    const old = same || at;
    if (!old) there.append(child);
    else if (child.id && !same) there.insertBefore(child, at);
    else {
      at = old.nextSibling;
      become(old, child);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
