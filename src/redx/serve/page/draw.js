// Figures in plain SVG: the dial of ε*, scores along a direction, the triangle of three experts, the price of safety.

import { answerIndex, blend, labelOf, scores } from "./compose.js";
import { percent, share, svg } from "./dom.js";

const COLOURS = ["var(--clean)", "var(--worst)", "var(--gain)", "#8a5cc2", "#a8821a"];

export function dial(radius) {
  const length = Math.PI * 80, point = (value) => [100 - 80 * Math.cos(Math.PI * value), 100 - 80 * Math.sin(Math.PI * value)];
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((value) => {
    const [x, y] = [100 - 98 * Math.cos(Math.PI * value), 100 - 98 * Math.sin(Math.PI * value)];
    return svg("text", { x, y: y + 4, "font-size": 9, "text-anchor": "middle", class: "soft" }, String(100 * value));
  });
  const [x, y] = point(Math.min(1, radius));
  return svg("svg", { viewBox: "-6 -6 212 118", class: "dial", role: "img", "aria-label": `Certified radius ε* = ${share(radius)}` },
    svg("path", { d: "M20 100 A80 80 0 0 1 180 100", fill: "none", "stroke-width": 14, class: "back", "stroke-linecap": "round" }),
    svg("path", { d: "M20 100 A80 80 0 0 1 180 100", fill: "none", "stroke-width": 14, "stroke-linecap": "round",
      class: radius < 0.25 ? "front low" : "front", "stroke-dasharray": `${Math.max(0.01, length * Math.min(1, radius))} 999` }),
    svg("circle", { cx: x, cy: y, r: 9, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 2 }),
    ticks,
    svg("text", { x: 100, y: 84, "text-anchor": "middle", "font-size": 30, "font-weight": 700 }, share(radius)),
    svg("text", { x: 100, y: 104, "text-anchor": "middle", "font-size": 12, class: "soft" }, "ε*, certified"));
}

// Scores of the leading classes while the weights move from the router's to a target: straight lines that cross at ε*.
export function pathPlot(detail, from, target, radius, now, room) {
  const [width, height, left, bottom] = [Math.min(560, Math.max(320, room)), 250, 30, 34];
  const start = scores(detail, from), end = scores(detail, target);
  let shown = [...start.keys()];
  if (!detail.regression) {
    shown.sort((a, b) => Math.max(start[b], end[b]) - Math.max(start[a], end[a]));
    shown = [detail.predicted, ...shown.filter((c) => c !== detail.predicted)].slice(0, 5);
  }
  const values = shown.flatMap((c) => [start[c], end[c]]);
  const guides = detail.regression ? [detail.predicted - 0.5, detail.predicted + 0.5] : [];
  const low = Math.min(...values, ...guides), high = Math.max(...values, ...guides), pad = (high - low || 1) * 0.08;
  const x = (value) => left + value * (width - left - 110);
  const y = (value) => height - bottom - ((value - low + pad) / (high - low + 2 * pad)) * (height - bottom - 14);
  const labels = shown.map((c) => ({ c, y: y(end[c]) })).sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => { if (i) label.y = Math.max(label.y, labels[i - 1].y + 13); });
  const lines = shown.map((c, i) => svg("line", { x1: x(0), y1: y(start[c]), x2: x(1), y2: y(end[c]), stroke: COLOURS[i % 5],
    "stroke-width": c === detail.predicted || detail.regression ? 3.2 : 1.8 }));
  const names = labels.map(({ c, y: at }) => svg("text", { x: x(1) + 6, y: at + 4, "font-size": 11, fill: COLOURS[shown.indexOf(c) % 5],
    style: { fill: COLOURS[shown.indexOf(c) % 5] } }, detail.regression ? "output" : shorten(labelOf(detail, c), 17)));
  const crossing = radius < 1 ? [
    svg("line", { x1: x(radius), x2: x(radius), y1: 8, y2: height - bottom, stroke: "var(--ink)", "stroke-dasharray": "5 4" }),
    svg("text", { x: x(radius) + (radius > 0.7 ? -5 : 5), y: 17, "font-size": 12, "font-weight": 700, "text-anchor": radius > 0.7 ? "end" : "start" },
      `ε* = ${share(radius)}`)] : [];
  const marker = now === null ? [] : [
    svg("line", { x1: x(now), x2: x(now), y1: 8, y2: height - bottom, stroke: "var(--accent)", "stroke-width": 2 }),
    ...shown.map((c, i) => svg("circle", { cx: x(now), cy: y(start[c] + now * (end[c] - start[c])), r: 4, fill: COLOURS[i % 5] }))];
  const text = radius < 1 ? `The answer changes at ε* = ${share(radius)}.` : "The lines do not cross, so the answer cannot change.";
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Scores on the way to the worst router. ${text}` },
    [0, 0.25, 0.5, 0.75, 1].map((tick) => [
      svg("line", { x1: x(tick), x2: x(tick), y1: 8, y2: height - bottom, class: "grid-line" }),
      svg("text", { x: x(tick), y: height - bottom + 15, "font-size": 11, "text-anchor": "middle", class: "soft" }, percent(tick, 0))]),
    guides.map((value) => svg("line", { x1: x(0), x2: x(1), y1: y(value), y2: y(value), stroke: "var(--base)", "stroke-dasharray": "4 3" })),
    svg("text", { x: (x(0) + x(1)) / 2, y: height - 3, "font-size": 11, "text-anchor": "middle", class: "soft" }, "share of the weight moved to the worst router, ε"),
    svg("text", { x: 12, y: 120, "font-size": 11, class: "soft", transform: "rotate(-90 12 120)", "text-anchor": "middle" }, "score"),
    lines, crossing, marker, names);
}

export const CORNERS = [[200, 14], [386, 336], [14, 336]];

export function toTriangle(weights) {
  return [0, 1].map((axis) => weights.reduce((sum, weight, k) => sum + weight * CORNERS[k][axis], 0));
}

export function fromTriangle(x, y) { // the nearest point of the simplex
  const [[ax, ay], [bx, by], [cx, cy]] = CORNERS, total = (by - cy) * (ax - cx) + (cx - bx) * (ay - cy);
  let weights = [((by - cy) * (x - cx) + (cx - bx) * (y - cy)) / total, ((cy - ay) * (x - cx) + (ax - cx) * (y - cy)) / total];
  weights = [...weights, 1 - weights[0] - weights[1]].map((weight) => Math.max(0, weight));
  const sum = weights[0] + weights[1] + weights[2];
  return weights.map((weight) => weight / sum);
}

// The simplex of three experts: cells coloured by their answer, the router's weights, and the weights now.
export function triangle(detail, names, from, now) {
  const parts = 36, cells = [], colours = new Map();
  const colour = (answer) => {
    if (!colours.has(answer)) colours.set(answer, answer === detail.predicted ? "var(--tint)" : COLOURS[(colours.size + 1) % 5]);
    return colours.get(answer);
  };
  colour(detail.predicted);
  for (let i = 0; i < parts; i++) for (let j = 0; j < parts - i; j++) for (const up of [true, false]) {
    if (!up && j === parts - i - 1) continue;
    const corners = up ? [[i, j], [i + 1, j], [i, j + 1]] : [[i + 1, j], [i + 1, j + 1], [i, j + 1]];
    const centre = corners.reduce((sum, [a, b]) => [sum[0] + a / 3, sum[1] + b / 3], [0, 0]);
    const weights = [centre[0] / parts, centre[1] / parts, 1 - (centre[0] + centre[1]) / parts];
    const points = corners.map(([a, b]) => toTriangle([a / parts, b / parts, 1 - (a + b) / parts]).map((v) => v.toFixed(1)).join(","));
    const fill = colour(answerIndex(detail, weights));
    cells.push(svg("polygon", { points: points.join(" "), fill, stroke: fill, "stroke-width": 0.6, "fill-opacity": fill === "var(--tint)" ? 1 : 0.6 }));
  }
  const [fx, fy] = toTriangle(from), [x, y] = toTriangle(now), anchors = ["middle", "end", "start"];
  return svg("svg", { viewBox: "0 0 400 364", class: "triangle", role: "img",
    "aria-label": "All routers of three experts; the sliders move the point." },
    cells, svg("polygon", { points: CORNERS.join(" "), fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 }),
    names.map((name, k) => svg("text", { x: CORNERS[k][0], y: k ? 356 : 9, "font-size": 13, "font-weight": 600, "text-anchor": anchors[k] }, shorten(name, 22))),
    svg("line", { x1: fx, y1: fy, x2: x, y2: y, stroke: "var(--ink)", "stroke-dasharray": "4 3" }),
    svg("circle", { cx: fx, cy: fy, r: 6, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 2 }),
    svg("circle", { cx: x, cy: y, r: 9, fill: "var(--accent)", stroke: "var(--card)", "stroke-width": 3, "data-handle": true }));
}

export function pricePlot(rows, base, risk, runRisk, room) {
  const [width, height, left, right, bottom] = [Math.min(1100, Math.max(320, room)), 330, 52, 94, 40];
  const points = rows.filter((row) => row.risk > 0);
  const first = points[0]?.risk ?? 0.001, last = Math.max(points.at(-1)?.risk ?? 1, first * 10) * 1.25;
  const byDomain = rows.every((row) => row.domain !== undefined);
  const low = Math.min(base, ...rows.map((row) => Math.min(row.worst, row.domain ?? 1))), high = Math.max(base, ...rows.map((row) => row.clean));
  const pad = (high - low || 0.01) * 0.12, start = first / 1.6;
  const x = (value) => left + (Math.log(Math.max(value, start) / start) / Math.log(last / start)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low + pad) / (high - low + 2 * pad)) * (height - bottom - 12);
  const line = (name) => {
    let path = `M${x(start)} ${y(rows[0][name])}`;
    for (const row of points) path += `H${x(row.risk).toFixed(1)}V${y(row[name]).toFixed(1)}`;
    return `${path}H${x(last)}`;
  };
  const ends = [["clean", "var(--clean)", rows.at(-1).clean, "clean"], ["base", "var(--base)", base, "base alone"], ["worst", "var(--worst)", rows.at(-1).worst, "worst router"],
    ...(byDomain ? [["domain", "var(--worst)", rows.at(-1).domain, "… worst domain"]] : [])]
    .map((end) => ({ colour: end[1], y: y(end[2]), text: end[3] })).sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 14); });
  const ticks = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1].filter((tick) => tick >= start && tick <= last).filter((_, i) => width > 500 || i % 2 === 0);
  const step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2].find((one) => (high - low + 2 * pad) / one <= 6) ?? 0.25;
  const levels = [];
  for (let level = Math.ceil((low - pad) / step) * step; level <= high + pad; level += step) levels.push(level);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Clean accuracy and accuracy under the worst router by risk" },
    levels.map((level) => [svg("line", { x1: left, x2: width - right, y1: y(level), y2: y(level), class: "grid-line" }),
      svg("text", { x: left - 6, y: y(level) + 4, "font-size": 11, "text-anchor": "end", class: "soft" }, percent(level, step < 0.01 ? 1 : 0))]),
    ticks.map((tick) => svg("text", { x: x(tick), y: height - bottom + 16, "font-size": 11, "text-anchor": "middle", class: "soft" }, percent(tick, tick < 0.001 ? 2 : tick < 0.01 ? 1 : 0))),
    svg("text", { x: (left + width - right) / 2, y: height - 4, "font-size": 11, "text-anchor": "middle", class: "soft" }, "risk: what the worst router may cost of the base's accuracy"),
    svg("line", { x1: left, x2: width - right, y1: y(base), y2: y(base), stroke: "var(--base)", "stroke-dasharray": "6 4", "stroke-width": 1.6 }),
    svg("path", { d: line("clean"), fill: "none", stroke: "var(--clean)", "stroke-width": 2.6 }),
    svg("path", { d: line("worst"), fill: "none", stroke: "var(--worst)", "stroke-width": 2.6 }),
    byDomain ? svg("path", { d: line("domain"), fill: "none", stroke: "var(--worst)", "stroke-width": 1.6, "stroke-dasharray": "3 3" }) : [],
    ends.map((end) => svg("text", { x: width - right + 6, y: end.y + 4, "font-size": 12, "font-weight": 600, style: { fill: end.colour } }, end.text)),
    runRisk === null ? [] : svg("line", { x1: x(runRisk), x2: x(runRisk), y1: 8, y2: height - bottom, stroke: "var(--base)", "stroke-dasharray": "2 3" }),
    svg("line", { x1: x(risk), x2: x(risk), y1: 8, y2: height - bottom, stroke: "var(--accent)", "stroke-width": 2 }));
}

export function shorten(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

export { blend };
