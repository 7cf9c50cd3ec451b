// Small helpers: elements without innerHTML, numbers as text.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "value" && "value" in node) node.value = value;
    else if (name === "checked") node.checked = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => build(document.createElementNS(SVG, name), attributes, children);
export const byId = (id) => document.getElementById(id);
export const fill = (node, ...children) => { node.replaceChildren(...children.flat(9).filter((child) => child)); return node; };

export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}\u00a0%`;
export const signed = (value, digits = 2) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
export const number = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4))));
export function share(value) { // ε as text, never rounded up to 100 %
  if (value >= 1) return "100\u00a0%";
  return value > 0.999 ? ">\u00a099.9\u00a0%" : value > 0 && value < 0.001 ? "<\u00a00.1\u00a0%" : percent(value);
}

export function later(action, milliseconds) {
  let timer = 0;
  return (...values) => { clearTimeout(timer); timer = setTimeout(() => action(...values), milliseconds); };
}
