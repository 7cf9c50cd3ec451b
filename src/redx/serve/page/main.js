// Starts the page: reads the model and the address, and shows the view that the address names.

import { showAdversary } from "./adversary.js";
import { describeRun, showAnswer } from "./ask.js";
import { showCopy } from "./copy.js";
import { byId, el, fill, later, percent } from "./dom.js";
import { showExamples } from "./examples.js";
import { showExperts } from "./experts.js";
import { imageInput, numbersInput, textInput } from "./inputs.js";
import { watchMonitor } from "./monitor.js";
import { showPrice } from "./price.js";
import { address, currentRule, readAddress, request, run, setToken, setting, state, writeAddress } from "./state.js";

const CHAINS = ["12 plus 5 minus 3", "40 minus 17 plus 8", "9 plus 9 plus 9"];
const page = { input: null, asked: null, answer: null, key: null };

function fail(error) {
  byId("problem").hidden = false;
  byId("problem").textContent = error.message;
  if (error.status === 401) byId("token").hidden = false;
}
const safely = (action) => async (...values) => {
  try { byId("problem").hidden = true; return await action(...values); } catch (error) { fail(error); }
};

async function start() {
  readAddress();
  run.model = await request("/api/model");
  byId("token").hidden = true;
  document.title = `redx · ${run.model.run}`;
  byId("run").textContent = describeRun();
  byId("run").title = run.model.about;
  fill(byId("rule"), run.model.rules.map((rule) => el("option", { value: rule.name, selected: rule.name === currentRule().name }, `${rule.name} – ${rule.about} (owners share ${rule.shares})`)));
  byId("rule").onchange = (event) => change({ rule: event.target.value === run.model.rule ? null : event.target.value, weights: null });
  const make = { text: textInput, numbers: numbersInput, image: imageInput }[run.model.kind];
  page.input = make(byId("input"), edited, run.model.kind === "numbers" ? run.model.shape.reduce((a, b) => a * b, 1) : run.model.steps ? "12 plus 5 minus 3" : "Write a question");
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  window.addEventListener("hashchange", () => { readAddress(); byId("rule").value = currentRule().name; byId("main").focus?.(); safely(render)(); });
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); page.input.focus(); });
  suggest();
  watchMonitor(byId("monitor"));
  await render();
}

const change = safely(async (changes) => { Object.assign(state, changes); writeAddress(); await render(); });
const go = (changes) => change(changes);

function edited() { state.row = null; state.x = null; state.weights = null; }

const submit = safely(async () => {
  const value = page.input.get();
  if (value === null) throw new Error("There is nothing to ask yet; draw a digit or pick one.");
  if (state.row === null) {
    if (page.input.pack) Object.assign(state, { x: page.input.pack(value), q: null });
    else Object.assign(state, { q: value, x: null });
  }
  state.weights = null; state.step = 0;
  writeAddress();
  await ask(value);
  await render();
});

async function ask(value) {
  const body = { inputs: [value], ...setting(), detail: true, monitor: false }, key = JSON.stringify(body);
  if (page.key === key) return;
  if (run.model.abstains) body.abstain = run.model.abstains;
  const reply = await request("/api/predict", body);
  Object.assign(page, { asked: value, answer: reply.answers[0], key });
  if (reply.version !== run.model.version) { run.model = await request("/api/model"); byId("run").textContent = describeRun(); }
}

async function restoreInput() { // the input that the address names, or the first example
  if (state.row !== null && page.row !== state.row) {
    const { rows, problem } = await request(`/api/examples?row=${state.row}`);
    if (rows[0].input === null) throw new Error(problem);
    page.input.set(rows[0].input);
    page.row = state.row;
    if (run.model.kind === "text") state.q = rows[0].input;
    return rows[0].input;
  }
  if (state.row !== null) return page.input.get();
  page.row = null;
  if (page.input.pack ? state.x : state.q) {
    const value = page.input.pack ? page.input.unpack(state.x) : state.q;
    if (value === null) throw new Error("The address holds a damaged input.");
    if (JSON.stringify(page.input.get()) !== JSON.stringify(value)) page.input.set(value);
    return value;
  }
  return page.asked;
}

async function render() {
  const view = state.view;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const here = link.dataset.view === view;
    link.toggleAttribute("aria-current", here);
    if (here) link.setAttribute("aria-current", "page");
    link.setAttribute("href", address({ view: link.dataset.view }));
  }
  for (const panel of document.querySelectorAll("[data-panel]")) panel.hidden = panel.dataset.panel !== view;
  const asks = view === "ask" || view === "adversary";
  byId("query").hidden = !asks;
  showChips();
  if (asks) {
    const value = await restoreInput();
    if (value !== null) await ask(value);
    if (view === "ask") showAnswer(byId("ask"), page.answer);
    else showAdversary(byId("adversary"), page.answer, page.asked, copySoon);
  } else if (view === "price") await showPrice(byId("price"), () => { showChips(); copySoon(); });
  else if (view === "experts") showExperts(byId("experts"), byId("diff"), (name) => {
    const off = state.without.includes(name) ? state.without.filter((one) => one !== name) : [...state.without, name];
    change({ without: off, weights: null }).then(() => document.querySelector(`.switch[data-expert="${CSS.escape(name)}"]`)?.focus());
  });
  else await showExamples(byId("examples"), go);
  copy();
}

function copy() { showCopy(byId("copy"), page.asked); }
const copySoon = later(copy, 150);

function showChips() {
  const chips = [], risk = run.model.risk;
  const chip = (text, changes, label) => el("button", { type: "button", class: "chip off", "aria-label": label, onclick: () => change(changes) }, text, " ×");
  if (risk && currentRule().controlled) {
    if (state.risk !== null && state.risk !== risk.risk) chips.push(chip(`risk ${percent(state.risk, 2)}`, { risk: null }, "Back to the risk of the run"));
    else chips.push(el("span", { class: "chip" }, `risk ${percent(risk.risk, 2)}`));
  }
  for (const name of state.without) chips.push(chip(`without ${name}`, { without: state.without.filter((one) => one !== name), weights: null }, `Switch ${name} on again`));
  fill(byId("chips"), chips);
}

async function suggest() { // inputs worth asking: fragile ones, and some that the experts help with
  const pick = (row) => { page.input.set(row.input); Object.assign(state, { row: row.row, q: run.model.kind === "text" ? row.input : null, x: null, weights: null, step: 0 }); page.row = row.row; submit(); };
  const offer = (rows) => (page.input.offer ? page.input.offer(rows, pick) : fill(byId("suggestions"), rows.map((row) =>
    el("button", { type: "button", class: "chip", onclick: () => pick(row) }, run.model.kind === "text" ? row.input : `no. ${row.row} (${row.label})`))));
  if (run.model.steps) {
    fill(byId("suggestions"), CHAINS.map((text) => el("button", { type: "button", class: "chip", onclick: () => { page.input.set(text); edited(); submit(); } }, text)));
    if (!state.q && state.row === null && ["ask", "adversary"].includes(state.view)) { page.input.set(CHAINS[0]); submit(); }
    return;
  }
  try {
    const rows = [];
    for (const [filter, limit] of [["fragile", page.input.offer ? 8 : 3], ["helped", page.input.offer ? 8 : 2], ["all", page.input.offer ? 8 : 3]]) {
      const table = await request(`/api/examples?filter=${filter}&limit=${limit}${filter === "all" ? "&sort=row" : ""}`);
      for (const row of table.rows) if (row.input !== null && !rows.some((one) => one.row === row.row)) rows.push(row);
    }
    if (!rows.length) return;
    offer(rows.slice(0, page.input.offer ? 18 : 5));
    if (page.asked === null && !state.q && !state.x && state.row === null && ["ask", "adversary"].includes(state.view) && !page.input.get()?.length) pick(rows[0]);
  } catch { /* the data of the run are not on this machine: the input is enough */ }
}

byId("token").addEventListener("submit", (event) => { event.preventDefault(); setToken(byId("token-value").value); safely(start)(); });
safely(start)();
