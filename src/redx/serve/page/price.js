// The view Price of safety: a slider for the risk with its figures on choice examples, and once what stands now on the test split.

import { el, fill, number, percent } from "./dom.js";
import { pricePlot } from "./draw.js";
import { currentRule, request, run, settingQuery, state, writeAddress } from "./state.js";

const STEPS = 400; // of the slider, in equal ratios of the risk
let known = null;

export function rowAt(rows, risk) {
  let row = rows[0];
  for (const next of rows) if (next.risk <= risk + 1e-12) row = next;
  return row;
}

export async function showPrice(node, apply) {
  if (!run.model.risk) return fill(node, el("p", { class: "status" }, "This run has no experts under risk control, so there is no risk to choose."));
  const query = settingQuery();
  query.delete("risk");
  if (!currentRule().controlled) query.delete("rule");
  const key = query.toString();
  if (known?.key !== key) {
    fill(node, el("p", { class: "note" }, "Computing the figures of every cut-off …"));
    known = { key, price: await request(`/api/price?${key}`) };
  }
  draw(node, known.price, apply);
}

function draw(node, price, apply) {
  const rows = price.rows, positive = rows.filter((row) => row.risk > 0);
  const first = Math.max(positive[0]?.risk ?? 0.001, price.smallest), least = first / 1.6, most = Math.max(positive.at(-1)?.risk ?? 1, least * 16);
  const toRisk = (step) => { const risk = least * (most / least) ** (step / STEPS); return risk < first ? 0 : Math.min(1, risk); };
  const toStep = (risk) => (risk < first ? 0 : Math.round((STEPS * Math.log(risk / least)) / Math.log(most / least)));
  let risk = state.risk ?? price.risk;
  const figures = el("dl", { class: "figures", id: "price-figures", "aria-live": "polite" }), plot = el("div", {}), text = el("p", { id: "price-text" });
  const output = el("output", { for: "risk" });
  const slider = el("input", { type: "range", id: "risk", min: 0, max: STEPS, step: 1, value: toStep(risk),
    oninput: () => { risk = toRisk(Number(slider.value)); if (risk) risk = Math.max(first, Number(risk.toPrecision(3))); update(); }, onchange: () => { state.risk = risk; writeAddress(); apply(); } });

  const figure = (name, title, value, note) => el("div", { class: name }, el("dt", {}, title), el("dd", { "data-figure": name, "data-value": String(value) }, percent(value, 2), note ? el("small", {}, ` ${note}`) : null));

  function update() {
    const row = rowAt(rows, risk);
    output.textContent = percent(risk, 2);
    slider.setAttribute("aria-valuetext", percent(risk, 2));
    fill(figures, figure("promise", "risk", risk, price.confidence ? `with probability ${price.confidence}` : "on average"),
      figure("clean", "clean accuracy", row.clean), figure("worst", "under the worst router", row.worst),
      figure("base", "base alone", price.base), figure("worst", "harm", row.harm));
    text.textContent = row.allowed < 0
      ? `No risk that ${price.held} examples can promise is this small, so every expert is silent and the base answers.`
      : price.by === "domain" ? `Every domain has a cut-off of its own on the ${price.held} choice examples; the worst router harms ${percent(row.domain_harm, 2)} of the domain that it harms most.`
      : `${row.allowed} of ${price.held} choice examples may be harmed, so the cut-off on them is ${row.cutoff === null ? "−∞: every expert contributes everywhere" : row.cutoff.toFixed(3)}.`;
    text.dataset.cutoff = price.by === "domain" ? "" : row.cutoff ?? (row.allowed < 0 ? "Infinity" : "-Infinity");
    fill(plot, pricePlot(rows, price.base, risk, price.risk, plot.clientWidth || 960));
  }
  const now = price.now;
  const byDomain = ({ domains, budget }) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The promise in every domain" }, el("table", { id: "price-domains" },
    el("thead", {}, el("tr", {}, ["domain", "calibrated on", "base", "clean", "any router", budget === "routing" ? "harm by routers" : "harm", "95 %"].map((name, k) => el("th", { scope: "col", class: k ? "number" : null }, name)))),
    el("tbody", {}, Object.entries(domains).map(([name, one]) => el("tr", {}, el("td", {}, name),
      el("td", { class: "number" }, `${number(one.calibration)}${one.cutoff === null ? " (silent)" : one.together.length ? " (shared)" : ""}`),
      ...[one.base, one.clean, one.worst, budget === "routing" ? one.routing_harm : one.harm].map((value) => el("td", { class: "number" }, typeof value === "number" ? percent(value, 2) : "—")),
      el("td", { class: "number" }, typeof one.low === "number" ? `${percent(one.low, 2)} to ${percent(one.high, 2)}` : "—"))))));

  fill(node, el("div", { class: "card" }, el("div", { class: "slider" }, el("label", { for: "risk" }, "Risk"), slider, output), text, figures),
    el("div", { class: "card" }, el("h2", {}, `What safety costs: rule ${price.rule} on ${price.examples.toLocaleString("en")} choice examples`), plot),
    el("div", { class: "card", id: "price-now" }, el("h2", {}, "The run as it stands: rule red on the test split"),
      el("dl", { class: "figures" }, figure("promise", "risk promised", now.risk, now.confidence ? `with probability ${now.confidence}` : "on average"),
        figure("clean", "clean accuracy", now.clean), figure("worst", "under the worst router", now.worst), figure("base", "base alone", now.base),
        figure("worst", "harm", now.harm, `95 %: ${percent(now.low, 2)} to ${percent(now.high, 2)}`)),
      el("p", { class: "note" }, `${now.by === "domain" ? "Every domain has a cut-off of its own" : now.cutoff === null ? "No finite cut-off is needed" : `The cut-off is ${now.cutoff.toFixed(3)}`}, as ${now.calibration} calibration examples say. Slider and switches do not change these figures.`),
      Object.values(now.quarantine ?? {}).some((one) => one.quarantined) ? el("p", { class: "note" }, `In quarantine, with weight zero: ${Object.entries(now.quarantine).filter(([, one]) => one.quarantined).map(([name]) => name).join(", ")}.`) : null,
      now.domains ? byDomain(now) : null));
  update();
}
