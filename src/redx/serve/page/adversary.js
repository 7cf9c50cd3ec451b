// The view in which the user is the router: sliders on the simplex, the triangle of three experts, and the worst router.

import { answerIndex, blend, drag, labelOf, movedShare, worstDirection } from "./compose.js";
import { el, fill, later, share } from "./dom.js";
import { fromTriangle, pathPlot, triangle } from "./draw.js";
import { request, setting, state, writeAddress } from "./state.js";

const ABOVE = 1.0005; // how far beyond ε* the button goes, so that the change can be seen

export function showAdversary(node, answer, input, changed) {
  if (!answer) return fill(node, el("p", { class: "note" }, "Ask something first."));
  const chain = "steps" in answer;
  if (chain && !answer.steps.length) return fill(node, el("p", { class: "status bad" }, answer.reason));
  const one = chain ? answer.steps[Math.min(state.step, answer.steps.length - 1)] : answer;
  const chooser = chain ? el("p", { class: "chips" }, answer.steps.map((step, i) => el("button", { type: "button", class: "chip", "aria-pressed": String(step === one),
    onclick: () => { state.step = i; state.weights = null; writeAddress(); showAdversary(node, answer, input, changed); } }, `${i + 1}. ${step.question}`))) : null;
  const body = el("div", {});
  fill(node, chooser, body);
  if (!one.detail?.region) return fill(body, el("div", { class: "card" }, el("p", { class: "status", id: "why" }, one.why ?? "This rule has no routing weights.")));
  game(body, one, chain ? one.question : input, chain, changed);
}

function game(node, one, input, single, changed) {
  const detail = one.detail, names = Object.keys(one.weights), own = Object.values(one.weights);
  const worst = worstDirection(detail, own), radius = one.radius;
  const fits = state.weights?.length === own.length && state.weights.every((weight) => weight >= 0 && weight <= 1);
  let weights = fits ? state.weights : own.slice();
  let along = null, sent = 0;
  const sliders = names.map((name, k) => el("input", { type: "range", min: 0, max: 1, step: 0.001, id: `weight-${k}`, "data-expert": name,
    oninput: (event) => { along = null; set(drag(weights, k, Number(event.target.value), detail.region)); } }));
  const outputs = names.map((_, k) => el("output", { for: `weight-${k}` }));
  const epsilon = el("input", { type: "range", min: 0, max: 1, step: 0.001, id: "epsilon", value: 0,
    oninput: (event) => { along = Number(event.target.value); set(blend(own, worst.target, along)); } });
  const epsilonText = el("output", { for: "epsilon" });
  const now = el("p", { class: "big", id: "adversary-answer" }), status = el("div", { id: "adversary-status" });
  const checked = el("p", { class: "note", id: "server-check" }), plot = el("div", {}), map = el("div", {});
  const announce = el("p", { class: "visually-hidden", "aria-live": "polite" });
  const speak = later((text) => { announce.textContent = text; }, 400);

  const confirm = later(async () => {
    const ticket = ++sent, given = weights.slice();
    const body = { inputs: [input], ...setting(), monitor: false, weights: given, ...(single ? { steps: false } : {}) };
    try {
      const { answers } = await request("/api/predict", body);
      if (ticket === sent) checked.textContent = `The server answers ${answers[0].answer} to these weights.`;
    } catch (error) { if (ticket === sent) checked.textContent = error.message; }
  }, 200);

  function set(next, save = true) {
    weights = next;
    const index = answerIndex(detail, weights), label = labelOf(detail, index), moved = movedShare(own, weights, detail.region);
    const changedNow = index !== detail.predicted;
    now.textContent = label;
    now.classList.toggle("changed", changedNow);
    names.forEach((_, k) => { sliders[k].value = weights[k]; outputs[k].textContent = share(weights[k]); sliders[k].setAttribute("aria-valuetext", share(weights[k])); });
    epsilon.value = along ?? moved;
    epsilonText.textContent = share(along ?? moved);
    epsilon.setAttribute("aria-valuetext", share(along ?? moved));
    const line = sentence(changedNow, moved);
    fill(status, el("p", { class: changedNow ? "status bad" : "status", "data-moved": String(moved), "data-changed": String(changedNow) }, line));
    speak(line);
    fill(plot, pathPlot(detail, own, worst.target, radius, along, plot.clientWidth || 520));
    if (names.length === 3 && detail.region === "simplex") fill(map, triangle(detail, names, own, weights));
    checked.textContent = "";
    confirm();
    state.weights = moved === 0 ? null : weights.map((weight) => Number(weight.toFixed(7)));
    if (save) { writeAddress(); changed(); }
  }

  function sentence(changedNow, moved) {
    if (moved === 0) return `These are the router's own weights. ${radius < 1 ? `Move more than ${share(radius)} to change the answer.` : ""}`;
    const text = `You moved ${share(moved)} of the weight. `;
    if (changedNow) return `${text}The answer changed; ${share(radius)} was the least that could do it.`;
    if (radius === 1) return `${text}It cannot help: no router changes this answer.`;
    return moved <= radius ? `${text}The certificate says that nothing can change up to ${share(radius)}.`
      : `${text}That could have been enough (ε* = ${share(radius)}), but not in this direction.`;
  }

  async function jump() {
    const value = Number(epsilon.value) > 0 ? Number(epsilon.value) : Math.min(1, radius * ABOVE + 1e-4);
    try {
      const { answers } = await request("/api/predict", { inputs: [input], ...setting(), monitor: false, epsilon: value, ...(single ? { steps: false } : {}) });
      along = null;
      const target = names.map((name) => answers[0].worst.weights[name]);
      const onPath = blend(own, worst.target, value);
      if (target.every((weight, k) => Math.abs(weight - onPath[k]) < 1e-6)) along = value;
      set(target);
    } catch (error) { checked.textContent = error.message; }
  }

  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); move(event); });
  map.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
  function move(event) {
    const box = map.firstChild.getBoundingClientRect();
    along = null;
    set(fromTriangle(((event.clientX - box.left) / box.width) * 400, ((event.clientY - box.top) / box.height) * 364));
  }

  fill(node, el("div", { class: "grid" },
    el("div", { class: "card c6" }, el("h2", {}, "Answer to your weights"), now, status, checked, announce,
      one.why ? el("p", { id: "why", class: "note" }, one.why) : null,
      el("h2", {}, detail.region === "box" ? "Weights of the experts" : "Your routing weights, which sum to 1"),
      el("div", { class: "sliders" }, names.map((name, k) => el("div", { class: "slider" }, el("label", { for: `weight-${k}`, title: name }, name), sliders[k], outputs[k]))),
      el("div", { class: "row" }, el("button", { type: "button", id: "reset", onclick: () => { along = null; set(own.slice()); } }, "The router's own weights"))),
    el("div", { class: "card c6" }, el("h2", {}, radius < 1 ? `The lines cross at ε*\u00a0=\u00a0${share(radius)}` : "The lines never cross: ε*\u00a0=\u00a01"), plot,
      el("div", { class: "slider" }, el("label", { for: "epsilon" }, "Move by ε"), epsilon, epsilonText),
      el("div", { class: "row" }, el("button", { type: "button", class: "primary", id: "worst", onclick: jump }, "Worst router within ε")),
      el("p", { class: "note" }, "Scores are straight lines in the weights, so nothing but a crossing can change the answer. With ε at 0 the button goes just beyond ε*."),
      map)));
  set(weights, false);
  Object.assign(window, { redxGame: { set, own, detail, radius, worst, answer: () => labelOf(detail, answerIndex(detail, weights)) } }); // for tests
}
