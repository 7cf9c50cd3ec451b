// The view Examples: the test split with the answers of the run as it stands, filtered and sorted.

import { el, fill, number, share } from "./dom.js";
import { shown } from "./inputs.js";
import { address, request, ruleQuery, run, state } from "./state.js";

const SIZE = 25;
const FILTERS = { fragile: "Right but fragile", helped: "Helped", harmed: "Harmed", wrong: "Wrong", all: "All" };
let ticket = 0;

export async function showExamples(node, go) {
  const mine = ++ticket, query = ruleQuery();
  query.set("filter", state.filter);
  if (state.domain) query.set("domain", state.domain);
  query.set("sort", state.sort);
  query.set("descending", state.descending);
  query.set("offset", state.page * SIZE);
  query.set("limit", SIZE);
  if (!node.firstChild) fill(node, el("p", { class: "note" }, "Reading the test split …"));
  const table = await request(`/api/examples?${query}`);
  if (mine !== ticket) return;
  const change = (changes) => go({ page: 0, ...changes });
  const head = (name, title) => el("th", { scope: "col", "aria-sort": state.sort === name ? (state.descending ? "descending" : "ascending") : null },
    el("button", { type: "button", onclick: () => change({ sort: name, descending: state.sort === name && !state.descending }) }, title, state.sort === name ? (state.descending ? " ↓" : " ↑") : ""));
  const pages = Math.max(1, Math.ceil(table.total / SIZE));
  const other = state.without.length || state.risk !== null;
  fill(node,
    el("div", { class: "card" },
      other ? el("p", { class: "status", id: "as-it-stands" }, "Experts that you switched off and another risk do not count here: compare them on choice examples, in Experts and Price of safety.") : null,
      el("div", { class: "row", role: "group", "aria-label": "Filter" }, Object.entries(FILTERS).map(([name, title]) => el("button", { type: "button", class: "chip", "data-filter": name,
        "aria-pressed": String(state.filter === name), onclick: () => change({ filter: name }) }, `${title} (${number(table.counts[name])})`)),
        el("label", {}, "Domain ", el("select", { id: "domain", onchange: (event) => change({ domain: event.target.value || null }) },
          el("option", { value: "" }, "all"), table.domains.map((name) => el("option", { value: name, selected: name === state.domain }, name))))),
      table.problem ? el("p", { class: "status bad" }, table.problem) : null,
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Test examples" }, el("table", { id: "table" },
        el("thead", {}, el("tr", {}, head("row", "no."), el("th", { scope: "col" }, "input"), head("domain", "domain"), head("label", "truth"),
          el("th", { scope: "col" }, "answer"), el("th", { scope: "col" }, "base"), head("radius", "ε*"))),
        el("tbody", {}, table.rows.map((row) => el("tr", {},
          el("td", { class: "number" }, String(row.row)),
          el("td", {}, el("a", { href: address({ view: "ask", row: row.row, q: null, x: null }), "aria-label": run.model.kind === "text" ? null : `Ask example ${row.row}` }, shown(row))),
          el("td", {}, row.domain), el("td", {}, String(row.label)),
          el("td", {}, mark(row.answer, row.label)), el("td", {}, mark(row.base, row.label)),
          el("td", { class: "number" }, el("span", { class: "radius", "aria-hidden": "true" }, el("i", { style: { width: `${100 * row.radius}%` } })), share(row.radius))))))),
      table.rows.length ? null : el("p", { class: "note" }, "No example passes this filter."),
      el("div", { class: "row" }, el("button", { type: "button", disabled: state.page === 0, onclick: () => go({ page: state.page - 1 }) }, "Back"),
        el("span", { class: "note" }, `page ${state.page + 1} of ${pages}, ${number(table.total)} examples`),
        el("button", { type: "button", disabled: state.page + 1 >= pages, onclick: () => go({ page: state.page + 1 }) }, "Next"))));
}

function mark(answer, label) {
  const right = String(answer) === String(label);
  return [String(answer), " ", el("span", { class: right ? "tag" : "tag bad" }, right ? "right" : "wrong")];
}
