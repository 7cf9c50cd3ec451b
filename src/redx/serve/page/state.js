// The state of the page, which the address holds after #, and the requests to the server.

export const VIEWS = ["ask", "adversary", "price", "experts", "examples"];
export const state = { view: "ask", q: null, row: null, x: null, rule: null, without: [], risk: null, weights: null, step: 0,
  filter: "fragile", domain: null, sort: "radius", descending: false, page: 0 };
const DEFAULTS = structuredClone(state);
const LISTS = ["without"], NUMBERS = ["row", "risk", "step", "page"];
let token = null;

export function readAddress() {
  const [view, query] = location.hash.slice(1).split("?");
  if (view.startsWith("token=")) { // only in the address that the command prints
    token = decodeURIComponent(view.slice(6));
    try { sessionStorage.setItem("redx-token", token); } catch { /* kept in memory alone */ }
    history.replaceState(null, "", "#ask");
    return readAddress();
  }
  Object.assign(state, structuredClone(DEFAULTS));
  if (VIEWS.includes(view)) state.view = view;
  const values = new URLSearchParams(query ?? "");
  for (const [name, value] of values) {
    if (!(name in DEFAULTS)) continue;
    if (LISTS.includes(name)) state[name] = value ? value.split("\u001f") : [];
    else if (NUMBERS.includes(name)) state[name] = Number.isFinite(Number(value)) && value !== "" ? Number(value) : DEFAULTS[name];
    else if (name === "descending") state[name] = value === "true";
    else if (name === "weights") state[name] = value.split(",").map(Number);
    else state[name] = value;
  }
}

export function address(changes = {}) {
  const values = new URLSearchParams(), next = { ...state, ...changes };
  const shown = { ask: ["q", "row", "x"], adversary: ["q", "row", "x", "weights", "step"], price: [], experts: [],
    examples: ["filter", "domain", "sort", "descending", "page"] }[next.view];
  for (const name of ["rule", "without", "risk", ...shown]) {
    const value = next[name], standard = DEFAULTS[name];
    if (value === null || value === undefined || JSON.stringify(value) === JSON.stringify(standard)) continue;
    if (name === "q" && next.row !== null) continue;
    values.set(name, Array.isArray(value) ? value.join(name === "weights" ? "," : "\u001f") : String(value));
  }
  const query = values.toString();
  return `#${next.view}${query ? `?${query}` : ""}`;
}

export function writeAddress() {
  if (location.hash !== address()) history.replaceState(null, "", address());
}

export class Refusal extends Error {
  constructor(status, sentence) { super(sentence); this.status = status; }
}

export async function request(path, body) {
  if (token === null) try { token = sessionStorage.getItem("redx-token"); } catch { token = null; }
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = body === undefined ? { headers } :
    { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try { response = await fetch(path, options); } catch { throw new Refusal(0, "The server does not answer; start it again with `redx serve`."); }
  if (response.status === 503) { // the queue is full: once more after the time that the server asks for
    await new Promise((done) => setTimeout(done, 1000 * Number(response.headers.get("Retry-After") ?? 1)));
    response = await fetch(path, options);
  }
  const value = await response.json().catch(() => ({ error: "The server gave no JSON." }));
  if (!response.ok) throw new Refusal(response.status, value.error ?? `The server answered ${response.status}.`);
  return value;
}

export function setToken(value) {
  token = value;
  try { sessionStorage.setItem("redx-token", value); } catch { /* kept in memory alone */ }
}

export const run = { model: null }; // what GET /api/model says

export function currentRule() {
  const name = state.rule ?? run.model.rule;
  return run.model.rules.find((rule) => rule.name === name) ?? { name, adversary: null, controlled: false, about: "" };
}

export function setting() {
  const body = {};
  if (state.rule) body.rule = state.rule;
  if (state.without.length) body.without = state.without;
  if (state.risk !== null && currentRule().controlled) body.risk = state.risk;
  return body;
}

export function ruleQuery() { // what can be asked of the test split, which shows the run as it stands
  return new URLSearchParams(state.rule ? { rule: state.rule } : {});
}

export function settingQuery() {
  const values = new URLSearchParams(), body = setting();
  for (const [name, value] of Object.entries(body)) [value].flat().forEach((one) => values.append(name, one));
  return values;
}
