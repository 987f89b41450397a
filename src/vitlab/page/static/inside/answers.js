/** What the model answers: its five most probable classes, beside those of the original picture, and after each layer. */
import { element, percent } from "../dom.js";
import { largest } from "./maths.js";
import { hasLayers } from "./reading.js";

const SHOWN = 5;

/** The first name of a class: "wall clock", not "wall clock, timepiece". */
export const shortName = (name) => name.split(",")[0];

/** Five bars. With an `original`, each also shows its bar and the change in percentage points. */
export function drawAnswers(holder, reading, original) {
  const before = original && original !== reading ? original.final : null;
  const rows = largest(reading.final, SHOWN);
  if (before) {
    const [was] = largest(before, 1);
    if (!rows.some(({ index }) => index === was.index)) rows.push({ index: was.index, value: reading.final[was.index] });
  }
  holder.replaceChildren(...rows.map(({ index, value }) => answerRow(reading.className(index), value, before?.[index])));
}

function answerRow(name, value, before) {
  const bars = element("span", { class: "bars" }, bar(value, "now"), before === undefined ? null : bar(before, "before"));
  const change = before === undefined ? null : element("span", { class: "change" }, points(value - before));
  return element(
    "li",
    { title: name },
    element("span", { class: "name" }, shortName(name)),
    bars,
    element("span", { class: "percent" }, percent(value)),
    change,
  );
}

function bar(share, kind) {
  const made = element("span", { class: `bar ${kind}` });
  made.style.width = `${100 * share}%`;
  return made;
}

function points(difference) {
  const rounded = (100 * difference).toFixed(1);
  return Number(rounded) === 0 ? "±0" : `${difference > 0 ? "+" : "−"}${rounded.replace("-", "")}`;
}

/** A sentence about the change of the answer, or none without edits. */
export function changeText(reading, original) {
  if (!original || original === reading) return "";
  const [[now], [was]] = [largest(reading.final, 1), largest(original.final, 1)];
  const [name, share] = [shortName(reading.className(was.index)), reading.final[was.index]];
  if (now.index === was.index) return `Still “${name}”: ${percent(was.value)} before, ${percent(share)} now.`;
  const [found] = [shortName(reading.className(now.index))];
  return `The answer changed from “${name}” (${percent(was.value)} before, ${percent(share)} now) to “${found}” (${percent(now.value)}).`;
}

/** One line per layer: its five most probable classes as parts of a bar, and the name of the first.
 *
 * `on` has hover(layer or null) and pick(layer).
 */
export function drawLayers(holder, reading, layer, on) {
  const [final] = largest(reading.final, 1);
  const layers = hasLayers(reading.card) ? [...Array(reading.layers + 1).keys()] : [];
  const rows = layers.map((at) => {
    const top = largest(reading.answer(at), SHOWN);
    const parts = top.map(({ index, value }, rank) => {
      const part = element("span", { class: `part rank${rank + 1}`, title: `${reading.className(index)} ${percent(value)}` });
      part.style.width = `${100 * value}%`;
      return part;
    });
    const isFinal = top[0].index === final.index;
    return element(
      "button",
      {
        type: "button",
        class: isFinal ? "layer agrees" : "layer",
        "data-layer": at,
        "aria-pressed": String(at === layer),
        onclick: () => on.pick(at),
        onpointerenter: () => on.hover(at),
        onpointerleave: () => on.hover(null),
      },
      element("span", { class: "number" }, `${at}`),
      element("span", { class: "stack" }, parts),
      element("span", { class: "name" }, shortName(reading.className(top[0].index))),
      element("span", { class: "percent" }, percent(top[0].value, 0)),
    );
  });
  holder.replaceChildren(...rows);
}

/** Keep the rows; only mark another layer. Rows under the pointer must not be replaced while it moves. */
export function markLayer(holder, layer) {
  for (const row of holder.children) row.setAttribute("aria-pressed", String(Number(row.dataset.layer) === layer));
}

/** The five bars of one layer. */
export function drawLayerAnswer(holder, reading, layer) {
  const rows = largest(reading.answer(layer), SHOWN);
  holder.replaceChildren(...rows.map(({ index, value }) => answerRow(reading.className(index), value)));
}

/** From which layer on the first answer stays what it is in the end. */
export function settledText(reading) {
  if (!hasLayers(reading.card)) return "";
  const [final] = largest(reading.final, 1);
  let settled = reading.layers;
  while (settled > 0 && largest(reading.answer(settled - 1), 1)[0].index === final.index) settled -= 1;
  const name = shortName(reading.className(final.index));
  return settled === 0 ? `It is “${name}” from the start.` : `It is “${name}” from layer ${settled} on.`;
}
