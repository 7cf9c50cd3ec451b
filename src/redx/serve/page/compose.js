// The rule in the browser: the answer to any weights, from the scores that the server sent.
// Scores are float32 values, which double precision holds exactly; sums in double have a rounding error of 1e-16, far below
// the bound that the server's certificate allows for, so the answer never changes below ε*. The server has the last word.

export function scores(detail, weights) {
  const total = Float64Array.from(detail.offset);
  detail.experts.forEach((values, k) => {
    if (weights[k] !== 0) for (let c = 0; c < total.length; c++) total[c] += weights[k] * values[c];
  });
  return total;
}

export function roundHalfEven(value) {
  const low = Math.floor(value), rest = value - low;
  if (rest !== 0.5) return rest < 0.5 ? low : low + 1;
  return low % 2 === 0 ? low : low + 1;
}

export function answerIndex(detail, weights) {
  const values = scores(detail, weights);
  if (detail.regression) return roundHalfEven(values[0]);
  let best = 0; // the lowest index wins a tie, as on the server
  for (let c = 1; c < values.length; c++) if (values[c] > values[best]) best = c;
  return best;
}

export function labelOf(detail, index) {
  return detail.regression ? String(index) : String(detail.classes[index]);
}

// Margins of the predicted answer; for a regression the distances to both ends of the interval that rounds to it.
export function margins(detail, values, predicted) {
  if (detail.regression) return [values[0] - (predicted - 0.5), predicted + 0.5 - values[0]];
  return Array.from(values, (value, c) => (c === predicted ? Infinity : values[predicted] - value));
}

export function vertex(count, k) {
  return Array.from({ length: count }, (_, j) => (j === k ? 1 : 0));
}

export function blend(from, to, share) {
  return from.map((weight, k) => (1 - share) * weight + share * to[k]);
}

// The smallest share ε with which an adversary gets from the router's weights to these.
export function movedShare(from, to, region) {
  let share = 0;
  from.forEach((weight, k) => {
    if (to[k] < weight) share = Math.max(share, 1 - to[k] / weight);
    if (region === "box" && to[k] > weight) share = Math.max(share, (to[k] - weight) / (1 - weight));
  });
  return share;
}

// The direction in which the answer changes first: the target weights, and the share at which it changes (1: never).
export function worstDirection(detail, weights) {
  const count = detail.experts.length, now = scores(detail, weights), predicted = detail.predicted;
  const own = margins(detail, now, predicted);
  let best = { share: Infinity, target: vertex(count, 0), rival: null }, least = Infinity, nearest = null;
  const consider = (values, target) => margins(detail, values, predicted).forEach((margin, c) => {
    if (margin < least) { least = margin; nearest = target; }
    if (margin < 0 || (margin === 0 && own[c] === 0)) {
      const share = own[c] / (own[c] - margin);
      if (share < best.share) best = { share, target, rival: c };
    }
  });
  if (detail.region === "box") {
    const rivals = detail.regression ? [0, 1] : detail.classes.map((_, c) => c).filter((c) => c !== predicted);
    for (const c of rivals) {
      const change = (values) => (detail.regression ? (c === 0 ? values[0] : -values[0]) : values[predicted] - values[c]);
      const target = detail.experts.map((values) => (change(values) < 0 ? 1 : 0));
      consider(scores(detail, target), target);
    }
  } else {
    for (let k = 0; k < count; k++) consider(scores(detail, vertex(count, k)), vertex(count, k));
  }
  if (best.rival === null) return { share: 1, target: nearest ?? vertex(count, 0), rival: null };
  return { ...best, share: Math.min(1, Math.max(0, best.share)) };
}

// One weight is dragged; the others keep their proportions, so that all stay on the simplex.
export function drag(weights, index, value, region) {
  const next = weights.slice();
  next[index] = Math.min(1, Math.max(0, value));
  if (region === "box") return next;
  const rest = weights.reduce((sum, weight, k) => (k === index ? sum : sum + weight), 0);
  const left = 1 - next[index];
  for (let k = 0; k < next.length; k++) {
    if (k !== index) next[k] = rest > 1e-9 ? (weights[k] / rest) * left : left / (next.length - 1);
  }
  return next;
}
