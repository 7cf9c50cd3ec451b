// What is on the page as a command, as Python, as an HTTP request and as a link.

import { el, fill } from "./dom.js";
import { address, currentRule, ruleQuery, run, setting, settingQuery, state } from "./state.js";

let chosen = "command";

const shell = (text) => (/^[\w./=@:-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`);
const python = (value) => JSON.stringify(value).replaceAll("null", "None").replaceAll("true", "True").replaceAll("false", "False");
const text = (value) => JSON.stringify(value);

function curl(path, body) {
  const data = body === undefined ? "" : ` \\\n  -H 'Content-Type: application/json' -d ${shell(JSON.stringify(body))}`;
  return `curl -s ${shell(location.origin + path)}${data}`;
}

function predictCommand(input) {
  const model = run.model, body = setting();
  const words = ["redx", model.steps ? "solve" : "predict", shell(model.run), shell(input)];
  if (body.rule) words.push("--rule", shell(body.rule));
  if (!model.steps) {
    for (const name of body.without ?? []) words.push("--without", shell(name));
    if (body.risk !== undefined) words.push("--risk", String(body.risk));
  }
  if (model.seed) words.push("--seed", String(model.seed));
  return words.join(" ");
}

function loading(body) {
  const lines = ["import redx", "", `model = redx.load(${text(run.model.run)}, seed=${run.model.seed})`];
  if (body.risk !== undefined && !body.without) lines.push(`model.calibrate(risk=${body.risk})`);
  const used = [body.rule ? `rule=${text(body.rule)}` : "", body.without ? `without=${python(body.without)}` : ""].filter(Boolean);
  lines.push(`with model.using(${used.join(", ")}):`);
  if (body.risk !== undefined && body.without) lines.push(`    model.calibrate(risk=${body.risk})`);
  return lines;
}

function states(input) {
  const model = run.model, body = setting(), read = model.kind === "text";
  const question = { inputs: [input], ...body }, lines = loading(body);
  if (state.view === "price") return {
    command: `redx calibrate ${shell(model.run)} --risk ${state.risk ?? model.risk?.risk ?? 0.01}  # sets this risk in the run`,
    Python: `from pathlib import Path\n\nfrom redx.runs.calibration import calibrate_run\n\nprint(calibrate_run(Path(${text(model.run)}), risk=${state.risk ?? model.risk?.risk ?? 0.01}))  # sets this risk in the run`, HTTP: curl(`/api/price?${settingQuery()}`) };
  if (state.view === "experts") return {
    command: body.without && body.risk === undefined ? ["redx experts diff", shell(model.run), ...body.without.map((name) => `--remove ${shell(name)}`), body.rule ? `--rule ${shell(body.rule)}` : ""].filter(Boolean).join(" ")
      : body.without ? curl("/api/diff", body) : `redx experts list ${shell(model.run)}`,
    Python: body.without ? `from pathlib import Path\n\nfrom redx.runs.diff import diff_experts\n\nprint(diff_experts(Path(${text(model.run)}), removed=${python(body.without)}${body.rule ? `, rule=${text(body.rule)}` : ""}, seed=${model.seed})["accuracy"])`
      : [...lines, "    print(model.experts.names)"].join("\n"), HTTP: body.without ? curl("/api/diff", body) : curl("/api/model") };
  if (state.view === "examples") {
    const query = ruleQuery();
    for (const name of ["filter", "domain", "sort"]) if (state[name]) query.set(name, state[name]);
    if (state.descending) query.set("descending", "true");
    const rule = currentRule().name;
    return { command: curl(`/api/examples?${query}`), HTTP: curl(`/api/examples?${query}`),
      Python: `from pathlib import Path\n\nfrom redx.composition.evaluation import certify, match_banks\nfrom redx.runs.parts import read_parts\n\nstored = read_parts(Path(${text(model.run)}), ${model.seed})\nfor rule, bank, parts in match_banks(stored.banks, [${text(rule)}]):\n    print(rule.name, bank, certify(rule, parts).radius.sort().values[:25])` };
  }
  const weights = state.view === "adversary" ? state.weights : null;
  if (weights) {
    question.weights = weights;
    lines.splice(1, 0, "import torch", "from redx.composition.evaluation import certify");
    lines.push("    rule, _ = model.rule_and_bank()", `    parts = model.parts([${python(input)}])`,
      `    index = certify(rule, parts, torch.tensor([${python(weights)}], dtype=torch.float32)).predicted[0]`, "    print(model.classes[index] if model.classes else int(index))");
  } else if (model.steps) {
    lines.splice(2, lines.length, `solver = redx.solver(${text(model.run)}, seed=${model.seed}${body.rule ? `, rule=${text(body.rule)}` : ""})`, `print(solver.solve([${text(input)}])[0].answer)`);
  } else lines.push(`    print(model.explain([${python(input)}])[0])`);
  if (weights && model.steps) question.steps = false;
  const http = curl("/api/predict", question);
  return { command: read && !weights && !(model.steps && (body.without || body.risk !== undefined)) ? predictCommand(input) : http, Python: lines.join("\n"), HTTP: http };
}

export function showCopy(node, input) {
  if (input === null && ["ask", "adversary"].includes(state.view)) { node.hidden = true; return; }
  node.hidden = false;
  const all = { ...states(input), link: location.origin + location.pathname + address() };
  const names = { command: "Command", Python: "Python", HTTP: "HTTP", link: "Link" };
  const content = el("pre", { tabindex: 0, id: "copy-text", "aria-label": "The same result elsewhere" }, all[chosen]);
  const copied = el("span", { class: "note", "aria-live": "polite" });
  fill(node, el("div", { class: "tabs" }, el("h2", {}, "Copy"), Object.entries(names).map(([name, title]) => el("button", { type: "button", class: "chip", "data-copy": name, "aria-pressed": String(name === chosen),
    onclick: () => { chosen = name; showCopy(node, input); node.querySelector(`[data-copy=${name}]`).focus(); } }, title)),
    el("button", { type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(all[chosen]); copied.textContent = "Copied."; } catch { copied.textContent = "Select the text to copy it."; }
    } }, "Copy to clipboard"), copied), content);
}
