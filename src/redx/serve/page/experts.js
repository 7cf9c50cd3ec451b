// The view Experts: switch them off and on, and see which answers to choice examples change.

import { el, fill, number, percent, share } from "./dom.js";
import { shown } from "./inputs.js";
import { address, request, run, setting, state } from "./state.js";

let ticket = 0;

export function showExperts(node, diffNode, toggle) {
  const model = run.model;
  fill(node, el("ul", { class: "experts" }, model.experts.map((expert, k) => {
    const on = !state.without.includes(expert.name), classes = expert.classes;
    const last = on && state.without.length === model.experts.length - 1;
    const own = expert.accuracy, figure = (value) => (typeof value === "number" ? percent(value) : "—");
    const facts = [["base, own domain", figure(own.base)], ["expert, own domain", figure(own.expert)],
      ...Object.entries(expert.training).filter(([, value]) => value !== null).slice(0, 2).map(([name, value]) => [`training: ${name}`, number(value)]),
      ["parameters", number(expert.parameters)], ["stored as", expert.dtype], ["fingerprint", expert.hash.slice(0, 12)],
      ["trained on base", expert.trained_on ? expert.trained_on.slice(0, 12) : "—"]];
    const trial = model.risk?.trials?.[model.risk.experts.indexOf(expert.name)];
    return el("li", { class: on ? "card expert" : "card expert off" },
      el("div", { class: "top" }, el("h3", { id: `expert-${k}` }, expert.name),
        el("input", { type: "checkbox", role: "switch", class: "switch", checked: on, disabled: last, "data-expert": expert.name,
          "aria-labelledby": `expert-${k}`, onchange: () => toggle(expert.name) })),
      trial?.quarantined ? el("p", { class: "note quarantine" }, el("span", { class: "tag bad" }, "in quarantine"),
        trial.p_claims < trial.p
          ? ` weight zero: of ${number(trial.examples)} choice examples, it claims ${number(trial.misclaimed)} of other domains and ${number(trial.claimed)} of its own.`
          : ` weight zero: of ${number(trial.examples)} choice examples, where it is confident, it makes ${number(trial.harmed)} wrong that the base answers correctly and ${number(trial.helped)} right that the base does not.`) : null,
      trial?.admitted && !trial.quarantined ? el("p", { class: "note" }, "Admitted: it takes part whatever its trial says.") : null,
      classes.length ? el("p", { class: "note" }, `${classes.length} class${classes.length > 1 ? "es" : ""}: ${classes.slice(0, 3).join(", ")}${classes.length > 3 ? " …" : ""}`) : null,
      el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  })));
  showDiff(diffNode);
}

async function showDiff(node) {
  const model = run.model, mine = ++ticket;
  if (!state.without.length) return fill(node);
  fill(node, el("p", { class: "note" }, "Comparing the answers on the choice examples …"));
  let diff;
  try { diff = await request("/api/diff", setting()); } catch (error) {
    if (mine === ticket) fill(node, el("p", { class: "status bad" }, error.message));
    return;
  }
  if (mine !== ticket) return;
  const { before, after } = diff.accuracy, domains = Object.entries(diff.domains).sort(([, a], [, b]) => (a.after - a.before) - (b.after - b.before));
  const most = Math.max(...domains.map(([, one]) => Math.abs(one.after - one.before)), 1e-9);
  const figure = (name, title, text, note) => el("div", { class: name }, el("dt", {}, title), el("dd", { "data-figure": title }, text, note ? el("small", {}, ` ${note}`) : null));
  fill(node, el("div", { class: "grid" },
    el("div", { class: "card c5" }, el("h2", {}, `Without ${state.without.join(", ")}, on ${number(diff.count)} choice examples`),
      el("dl", { class: "figures", id: "diff-figures" }, figure("clean", "accuracy", percent(after), `was ${percent(before)}`), figure("base", "flips", number(diff.flips)),
        figure("promise", "gained", number(diff.gained)), figure("worst", "lost", number(diff.lost)),
        diff.choice.after ? figure("worst", "worst router", percent(diff.choice.after.worst), `was ${percent(diff.choice.before.worst)}`) : null),
      el("p", { class: "note" }, "Choose by these. What you keep is calibrated once, by ", el("code", {}, "redx experts remove"), ", which prints its cut-off and its test figures.")),
    el("div", { class: "card c7" }, el("h2", {}, "Gain and loss by domain"), el("ul", { class: "bars" }, domains.map(([name, one]) => {
      const change = one.after - one.before, size = 50 * Math.abs(change) / most;
      return el("li", {}, el("span", { class: "name", title: name }, name),
        el("span", { class: "track" }, el("i", { class: change < 0 ? "minus" : "gain", style: { left: `${change < 0 ? 50 - size : 50}%`, width: `${size}%` } }), el("b", { style: { left: "50%" } })),
        el("span", { class: "value" }, change === 0 ? "0" : `${change < 0 ? "−" : "+"}${percent(Math.abs(change))}`));
    }))),
    diff.examples.length ? el("div", { class: "card c12" }, el("h2", {}, `Answers that change${diff.flips > 10 ? `, the first 10 of ${diff.flips}` : ""}`),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Answers that change" }, el("table", {},
        el("thead", {}, el("tr", {}, ["example", "domain", "truth", "before", "now", "ε* before"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, diff.examples.slice(0, 10).map((flip) => el("tr", {},
          el("td", {}, model.kind === "text" && flip.input !== null ? el("a", { href: address({ view: "ask", row: null, q: flip.input }), class: "input" }, flip.input) : shown(flip)), el("td", {}, flip.domain), el("td", {}, String(flip.label)),
          el("td", {}, String(flip.before)), el("td", {}, String(flip.after)), el("td", { class: "number" }, share(flip.radius.before)))))))) : null));
}
