// The input of a question: a text, a digit that is drawn or picked, or a list of numbers.

import { el, fill, number } from "./dom.js";
import { run } from "./state.js";

const SIZE = 28;

export function imageUrl(image, size = SIZE) {
  const canvas = Object.assign(document.createElement("canvas"), { width: size, height: size });
  const context = canvas.getContext("2d"), data = context.createImageData(SIZE, SIZE);
  image.flat().forEach((value, i) => data.data.set([value, value, value, 255], 4 * i));
  context.putImageData(data, 0, 0);
  return canvas.toDataURL();
}

// A drawn digit as the data set has them: scaled into a square of 20 pixels, its centre of mass in the middle.
export function centred(image) {
  const cells = image.flatMap((row, y) => row.map((value, x) => ({ x, y, value }))).filter((cell) => cell.value > 0);
  if (!cells.length) return image;
  const xs = cells.map((cell) => cell.x), ys = cells.map((cell) => cell.y);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const side = Math.max(Math.max(...xs) - left, Math.max(...ys) - top) + 1, scale = 20 / side;
  const source = Object.assign(document.createElement("canvas"), { width: SIZE, height: SIZE });
  const data = source.getContext("2d").createImageData(SIZE, SIZE);
  image.flat().forEach((value, i) => data.data.set([value, value, value, 255], 4 * i));
  source.getContext("2d").putImageData(data, 0, 0);
  const mass = cells.reduce((sum, cell) => sum + cell.value, 0);
  const [mx, my] = ["x", "y"].map((axis) => cells.reduce((sum, cell) => sum + (cell[axis] + 0.5) * cell.value, 0) / mass);
  const target = Object.assign(document.createElement("canvas"), { width: SIZE, height: SIZE });
  const context = target.getContext("2d");
  context.fillRect(0, 0, SIZE, SIZE);
  context.drawImage(source, SIZE / 2 - mx * scale, SIZE / 2 - my * scale, SIZE * scale, SIZE * scale);
  return quantised(context.getImageData(0, 0, SIZE, SIZE).data);
}

function quantised(pixels) { // sixteen greys, so that the address can hold the image exactly
  return Array.from({ length: SIZE }, (_, y) => Array.from({ length: SIZE }, (_, x) => 17 * Math.round(pixels[4 * (SIZE * y + x)] / 17)));
}

export const packImage = (image) => image.flat().map((value) => Math.round(value / 17).toString(16)).join("");
export function unpackImage(text) {
  if (!/^[0-9a-f]{784}$/.test(text)) return null;
  return Array.from({ length: SIZE }, (_, y) => Array.from({ length: SIZE }, (_, x) => 17 * parseInt(text[SIZE * y + x], 16)));
}

// Each kind of input shows itself in a node and has get() and set(value); `changed` is called when the user changes it.
export function textInput(node, changed, hint) {
  const box = el("textarea", { id: "text", rows: 2, maxlength: 20000, placeholder: hint, oninput: changed,
    onkeydown: (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); box.form.requestSubmit(); } } });
  fill(node, el("label", { class: "label", for: "text" }, "Your question"), box);
  return { get: () => box.value, set: (value) => { box.value = value; }, pack: null, focus: () => box.focus() };
}

export function numbersInput(node, changed, count) {
  const box = el("textarea", { id: "numbers", rows: 2, class: "mono", oninput: changed, spellcheck: "false" });
  fill(node, el("label", { class: "label", for: "numbers" }, `${count || "Some"} numbers, separated by commas or spaces`), box);
  return {
    get: () => box.value.split(/[\s,;]+/).filter(Boolean).map(Number),
    set: (value) => { box.value = value.map((one) => Number(Number(one).toPrecision(9))).join(", "); },
    pack: (value) => value.join(","), unpack: (text) => text.split(",").map(Number), focus: () => box.focus(),
  };
}

export function imageInput(node, changed) {
  const pad = el("canvas", { class: "pad", width: 280, height: 280, role: "img", id: "pad",
    "aria-label": "Drawing area for a digit; without a pointer, pick a test image beside it" });
  const context = pad.getContext("2d");
  const picks = el("div", { class: "picks" });
  let value = null, last = null, drawn = false;
  const clear = () => { context.fillStyle = "#000"; context.fillRect(0, 0, 280, 280); value = null; drawn = false; };
  const at = (event) => { const box = pad.getBoundingClientRect(); return [(event.clientX - box.left) * 280 / box.width, (event.clientY - box.top) * 280 / box.height]; };
  const draw = (event) => {
    if (!last) return;
    const next = at(event);
    Object.assign(context, { lineWidth: 22, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
    context.beginPath(); context.moveTo(...last); context.lineTo(...next); context.stroke();
    last = next; drawn = true; value = null;
  };
  const show = (image) => {
    clear(); value = image;
    const picture = new Image();
    picture.onload = () => { if (value === image) { context.imageSmoothingEnabled = false; context.drawImage(picture, 0, 0, 280, 280); } };
    picture.src = imageUrl(image);
  };
  pad.addEventListener("pointerdown", (event) => { if (value) clear(); pad.setPointerCapture(event.pointerId); last = at(event); draw(event); });
  pad.addEventListener("pointermove", draw);
  pad.addEventListener("pointerup", () => { last = null; changed(); pad.closest("form").requestSubmit(); });
  clear();
  fill(node, el("div", { class: "draw" }, el("div", {}, pad, el("div", { class: "row" }, el("button", { type: "button", onclick: clear }, "Clear"),
    el("span", { class: "note" }, "Draw a digit"))), picks));
  return {
    get: () => {
      if (value || !drawn) return value;
      const small = Object.assign(document.createElement("canvas"), { width: SIZE, height: SIZE }).getContext("2d");
      small.imageSmoothingQuality = "high";
      small.drawImage(pad, 0, 0, SIZE, SIZE);
      value = centred(quantised(small.getImageData(0, 0, SIZE, SIZE).data));
      return value;
    },
    set: show, pack: packImage, unpack: unpackImage, focus: () => picks.querySelector("button")?.focus(),
    offer: (rows, pick) => fill(picks, el("p", { class: "label" }, "or pick a test image"), el("div", { class: "chips" }, rows.map((row) =>
      el("button", { type: "button", "aria-label": `Test image ${row.row}, a ${row.label}`, onclick: () => pick(row) },
        el("img", { class: "mini", src: imageUrl(row.input), alt: "" }))))),
  };
}

export function shown(row) { // an example in a table
  if (row.input === null) return `no. ${row.row}`;
  if (run.model.kind === "image") return el("img", { class: "mini", src: imageUrl(row.input), alt: `image of a ${row.label}` });
  const text = run.model.kind === "text" ? row.input : row.input.slice(0, 4).map(number).join(", ") + (row.input.length > 4 ? " …" : "");
  return el("span", { class: "input" }, text);
}
