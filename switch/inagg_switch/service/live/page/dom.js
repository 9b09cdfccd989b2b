// Elements as plain values, and a patch that brings what is there to what should be. Text is always set as text, never
// read as HTML: names and sentences come from whoever runs a job.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "line", "circle", "rect", "text", "g"]);

// h("td", {class: "number"}, "7"): attributes that are null or false are left out; `key` tells siblings apart.
export function h(tag, attributes = {}, ...children) {
  return { tag, attributes, children: children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false) };
}

export function patch(parent, ...wanted) {
  const nodes = wanted.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false);
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset?.key !== undefined) keyed.set(child.dataset.key, child);
  let at = parent.firstChild;
  for (const node of nodes) {
    const key = typeof node === "object" ? node.attributes.key : undefined;
    let found = key === undefined ? at : keyed.get(String(key));
    if (!fits(found, node, key)) found = make(node);
    if (found !== at) parent.insertBefore(found, at);
    else at = at.nextSibling;
    fill(found, node);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function fits(found, node, key) {
  if (!found) return false;
  if (typeof node !== "object") return found.nodeType === Node.TEXT_NODE;
  return found.localName === node.tag && (key !== undefined || found.dataset?.key === undefined);
}

function make(node) {
  if (typeof node !== "object") return document.createTextNode("");
  return DRAWN.has(node.tag) ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
}

function fill(found, node) {
  if (typeof node !== "object") {
    if (found.data !== String(node)) found.data = String(node);
    return;
  }
  const { key, ...rest } = node.attributes;
  if (key !== undefined) rest["data-key"] = key;
  for (const { name } of [...found.attributes]) {
    // what the reader has opened stays open
    if (!(name in rest) && name !== "open") found.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(rest)) {
    if (value === null || value === undefined || value === false) found.removeAttribute(name);
    else if (found.getAttribute(name) !== String(value)) found.setAttribute(name, String(value));
  }
  patch(found, node.children);
}
