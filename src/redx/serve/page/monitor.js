// The strip that says whether the promise still holds, by the answers and labels since the server started.

import { el, fill, number, percent } from "./dom.js";
import { request } from "./state.js";

const EVERY = 15000; // milliseconds
let timer = 0;

export async function watchMonitor(node) { // now, and again and again while the page is seen
  clearInterval(timer);
  timer = setInterval(() => { if (!document.hidden) show(node); }, EVERY);
  await show(node);
}

async function show(node) {
  let state;
  try { state = await request("/api/monitor"); } catch { node.hidden = true; return; }
  node.hidden = !state.monitored;
  if (!state.monitored) return;
  const all = state.tests.find((test) => test.test === "overall"), lines = state.tests.find((test) => test.test === "confidences").lines;
  const where = state.tests.filter((test) => test.alarm && test.test === "domain").map((test) => test.name);
  node.classList.toggle("bad", state.alarm);
  node.dataset.alarm = String(state.alarm);
  fill(node,
    el("strong", { role: "status" }, state.alarm ? "Alarm" : all.lines ? "The promise holds so far" : "No answer is labelled yet"),
    el("span", {}, `${number(lines)} lines, ${number(all.lines)} labelled`),
    all.lines ? el("span", {}, `harm so far ${percent(all.harm, 2)}, at least ${percent(all.lower, 2)}; promised ${percent(state.risk, 2)}`) : null,
    where.length ? el("span", {}, `in ${where.join(", ")}`) : null,
    state.alarm ? el("span", { id: "monitor-verdict" }, state.verdict) : null);
}
