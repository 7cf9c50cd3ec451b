// The view Ask: the answer, what base and experts contribute, and the dial of ε*.

import { el, fill, percent, share, signed } from "./dom.js";
import { dial } from "./draw.js";
import { address, currentRule, run, state } from "./state.js";

export function showAnswer(node, answer) {
  if (!answer) return fill(node, el("p", { class: "note" }, "Ask something to see the answer."));
  if ("steps" in answer) return showChain(node, answer);
  fill(node, answerCards(answer));
}

function answerCards(answer) {
  const label = answer.answer ?? answer.closest, changed = String(label) !== String(answer.base);
  const abstained = answer.abstained ? el("p", { class: "status bad", id: "abstained" },
    `This input looks like none of the known classes: with abstention at ${percent(run.model.abstains, 0)} the model would not answer.`) : null;
  const weight = answer.weights[answer.expert];
  return el("div", { class: "grid" },
    el("div", { class: "card c7", "aria-live": "polite" },
      el("h2", {}, "Answer"),
      el("p", { class: "big", id: "answer" }, String(label)),
      el("p", {}, "The base alone says ", el("strong", { id: "base" }, String(answer.base)), " ",
        el("span", { class: changed ? "tag bad" : "tag" }, changed ? "changed by the experts" : "the same")),
      el("p", { class: "note" }, answer.range ? `Domain ${answer.range}. ` : "",
        `Most of the weight, ${share(weight)}, is on ${answer.expert}. `,
        answer.active.length < Object.keys(answer.weights).length
          ? `${answer.active.length || "No"} expert${answer.active.length === 1 ? " is" : "s are"} confident enough to contribute.` : ""),
      abstained),
    el("div", { class: "card c5" }, el("h2", {}, "How much routing must go wrong"), dial(answer.radius),
      el("p", { class: "note", id: "radius-text" }, answer.radius < 1
        ? `Whoever moves at most ${share(answer.radius)} of the routing weight cannot change this answer.`
        : answer.why ?? "No router can change this answer."),
      currentRule().adversary ? el("p", {}, el("a", { href: address({ view: "adversary" }) }, "Try to change it")) : null),
    el("div", { class: "card c12" }, el("h2", {}, `What adds to ${label}`), contributionBars(answer)));
}

export function contributionBars(answer) {
  const entries = Object.entries(answer.contributions).map(([name, value]) => ({ name, value, weight: answer.weights[name], silent: !answer.active.includes(name) }));
  if (answer.base_score !== null) entries.unshift({ name: "base", value: answer.base_score, base: true });
  const most = Math.max(...entries.map((entry) => Math.abs(entry.value)), 1e-9);
  const least = Math.min(0, ...entries.map((entry) => entry.value)) / most, span = 1 - least;
  return el("ul", { class: "bars" }, entries.map(({ name, value, weight, silent, base }) => {
    const from = (Math.min(0, value) / most - least) / span, size = Math.abs(value) / most / span;
    const about = base ? "" : ` (weight ${share(weight)}${silent ? ", below the cut-off" : ""})`;
    return el("li", { title: `${name}${about}` },
      el("span", { class: silent ? "name silent" : "name" }, name, el("span", { class: "visually-hidden" }, about)),
      el("span", { class: "track" }, el("i", { class: base ? "base" : value < 0 ? "minus" : "", style: { left: `${100 * from}%`, width: `${100 * size}%` } }),
        least < 0 ? el("b", { style: { left: `${(-100 * least) / span}%` } }) : null),
      el("span", { class: silent ? "value silent" : "value" }, silent ? "silent" : signed(value)));
  }));
}

function showChain(node, answer) {
  if (!answer.program) return fill(node, el("div", { class: "card" }, el("p", { class: "status bad", id: "reason" }, answer.reason)));
  const steps = answer.steps, step = steps[Math.min(state.step, steps.length - 1)];
  fill(node, el("div", { class: "grid" },
    el("div", { class: "card c7", "aria-live": "polite" }, el("h2", {}, "Answer"),
      el("p", { class: "big", id: "answer" }, answer.answer === null ? "—" : String(answer.answer)),
      answer.reason ? el("p", { class: "status bad", id: "reason" }, answer.reason) : null,
      el("p", { class: "note" }, "Program written by the decomposer"), el("pre", { id: "program" }, answer.program)),
    el("div", { class: "card c5" }, el("h2", {}, "How much routing must go wrong"), dial(answer.radius ?? 0),
      el("p", { class: "note" }, answer.weakest ? `A chain is as safe as its weakest step, here step ${answer.weakest}.` : "")),
    el("div", { class: "card c12" }, el("h2", {}, "Steps"), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Steps" },
      el("table", {}, el("thead", {}, el("tr", {}, ["", "question", "answer", "base", "expert", "ε*", ""].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, steps.map((one, i) => el("tr", {}, el("th", { scope: "row" }, String(i + 1)), el("td", {}, one.question),
          el("td", { class: "number" }, String(one.answer)), el("td", { class: "number" }, String(one.base)), el("td", {}, one.expert),
          el("td", { class: "number" }, share(one.radius)),
          el("td", {}, el("a", { href: address({ view: "adversary", step: i }), "aria-label": `Be the adversary of step ${i + 1}` }, "attack"))))))),
    step ? el("div", {}, el("h3", {}, `What adds to ${step.answer} in step ${steps.indexOf(step) + 1}`), contributionBars(step)) : null)));
}

export function describeRun() {
  const model = run.model;
  return `${model.run} · ${model.task} · seed ${model.seed} · ${model.experts.length} experts · ${model.fingerprint}`;
}
