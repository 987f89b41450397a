/** What the picture shows, in a sentence or two of plain English, from the numbers behind it. */
import { percent } from "../dom.js";
import { entropy, largest } from "./maths.js";
import { hasLayers, queryName } from "./reading.js";

const signed = (value, digits) => value.toFixed(digits).replace("-", "−");

export function sentence(reading, { view, layer, head, query }) {
  if (!hasLayers(reading.card)) return `${reading.card.name} has no attention between all patches, so only its answer can be shown.`;
  const from = reading.query(query);
  const who = queryName(from, reading.grid);
  const attending = Math.max(layer, 1);
  if (view === "head") return headSentence(reading, attending, head, from, who);
  if (view === "rollout") return rolloutSentence(reading, attending, from, who);
  if (view === "similarity") return similaritySentence(reading, layer, from, who);
  if (view === "colours") return coloursSentence(reading, layer);
  return `The picture as the model sees it: ${reading.size[1]} × ${reading.size[0]} pixels, cut into ${reading.patches} patches.`;
}

function headSentence(reading, layer, head, query, who) {
  const seen = reading.tokensSeen(layer, head, query);
  const patches = seen.subarray(reading.prefix);
  const onPatches = patches.reduce((total, share) => total + share, 0);
  const said = [`In layer ${layer}, head ${head + 1}, ${who} looks ${spread(reading, patches, onPatches)}.`];
  const top = largest(patches, 1)[0];
  const beside = typeof query === "number" ? direction(reading, query, top.index) : "";
  said.push(`The brightest patch, ${beside || place(reading, top.index)}, gets ${percent(top.value)} of its attention.`);
  const other = seen[0];
  if (reading.prefix && other > 0.2) said.push(`${percent(other, 0)} goes to the class token, which is not on the picture.`);
  if (typeof query === "number") {
    const own = patches[query];
    if (own > 0.2 && top.index !== query) said.push(`${percent(own, 0)} stays on the patch itself.`);
    else if (onPatches > 0 && top.index !== query) {
      const near = neighbours(reading, query).reduce((total, i) => total + patches[i], 0) / onPatches;
      if (near > 0.4) said.push(`It looks at its neighbourhood: ${percent(near, 0)} falls within one patch of it.`);
    }
  }
  const pixels = reading.distances[(layer - 1) * reading.heads + head];
  said.push(`Over all patches, this head reaches ${pixels.toFixed(0)} pixels on average; attention spread evenly would reach ${reading.evenDistance.toFixed(0)}.`);
  return said.join(" ");
}

/** "the patch itself", "its neighbour on the right": where a patch is, seen from the query; nothing if it is not near. */
function direction(reading, query, patch) {
  const columns = reading.grid[1];
  const down = Math.floor(patch / columns) - Math.floor(query / columns);
  const across = (patch % columns) - (query % columns);
  if (down === 0 && across === 0) return "the patch itself";
  if (Math.abs(down) > 1 || Math.abs(across) > 1) return "";
  const vertical = { "-1": "above", 0: "", 1: "below" }[down];
  const horizontal = { "-1": "left", 0: "", 1: "right" }[across];
  if (!vertical) return `its neighbour on the ${horizontal}`;
  return horizontal ? `its neighbour ${vertical} on the ${horizontal}` : `its neighbour ${vertical}`;
}

/** "almost only at one patch", "at about 12 patches", "almost everywhere": from the entropy on patches. */
function spread(reading, patches, onPatches) {
  if (onPatches < 0.02) return "at no patch in particular";
  const count = 2 ** entropy(patches.map((share) => share / onPatches));
  const kept = reading.kept.reduce((total, one) => total + one, 0);
  const where = region(reading, patches, onPatches);
  if (count < 1.6) return `almost only at one patch${where}`;
  if (count > 0.75 * kept) return "almost everywhere alike";
  return `at about ${Math.round(count)} of ${kept} patches${where}`;
}

/** ", mostly at the top left": where the attention is concentrated, if it is. */
function region(reading, patches, total) {
  const [rows, columns] = reading.grid;
  let [x, y, squares] = [0, 0, 0];
  patches.forEach((share, i) => {
    const [across, down] = [((i % columns) + 0.5) / columns, (Math.floor(i / columns) + 0.5) / rows];
    x += (share * across) / total;
    y += (share * down) / total;
    squares += (share * (across * across + down * down)) / total;
  });
  const deviation = Math.sqrt(Math.max(squares - x * x - y * y, 0));
  const vertical = y < 0.4 ? "top" : y > 0.6 ? "bottom" : "";
  const horizontal = x < 0.4 ? "left" : x > 0.6 ? "right" : "";
  if (!vertical && !horizontal) return deviation < 0.25 ? ", mostly in the middle" : "";
  return `, mostly at the ${[vertical, horizontal].filter(Boolean).join(" ")}`;
}

function rolloutSentence(reading, layer, query, who) {
  const values = reading.rollout(layer, query);
  const kept = reading.kept.reduce((total, one) => total + one, 0);
  const mean = values.reduce((total, value) => total + value, 0) / kept;
  const top = largest(values, 1)[0];
  const through = layer === reading.layers ? `all ${layer} layers` : `layers 1 to ${layer}`;
  return (
    `Bright patches are where ${who} gets its information from, through ${through} (attention rollout). The brightest, ` +
    `${place(reading, top.index)}, contributes ${(top.value / mean).toFixed(1)} times as much as the average patch. ` +
    "This is where information can come from, not why the model answers so."
  );
}

function similaritySentence(reading, layer, query, who) {
  const values = reading.similarity(layer, query);
  const kept = [...values].filter((_, i) => reading.kept[i] && i !== query).sort((a, b) => a - b);
  const middle = kept[Math.floor(kept.length / 2)] ?? 1;
  const when = layer === 0 ? "before the first layer" : `after layer ${layer}`;
  return (
    `Bright patches have a representation like that of ${who} ${when}: a cosine similarity of 1 is the same direction, ` +
    `0 is unrelated. Half of the patches are above ${middle.toFixed(2)}.`
  );
}

function coloursSentence(reading, layer) {
  const { share } = reading.colours(layer);
  const when = layer === 0 ? "before the first layer" : `after layer ${layer}`;
  const total = share.reduce((sum, one) => sum + one, 0);
  return (
    `Patches of similar colour have similar representations ${when}; the colours themselves mean nothing. ` +
    `Red, green and blue are the first three principal components, ${percent(total, 0)} of the variance.`
  );
}

export function place(reading, index) {
  const columns = reading.grid[1];
  return `row ${Math.floor(index / columns) + 1}, column ${(index % columns) + 1}`;
}

function neighbours(reading, index) {
  const [rows, columns] = reading.grid;
  const [row, column] = [Math.floor(index / columns), index % columns];
  const found = [];
  for (let r = Math.max(row - 1, 0); r <= Math.min(row + 1, rows - 1); r++) {
    for (let c = Math.max(column - 1, 0); c <= Math.min(column + 1, columns - 1); c++) found.push(r * columns + c);
  }
  return found;
}

/** The range of a colour scale with its unit. */
export function legendText({ unit, low, high }) {
  if (unit === "cosine") return `cosine similarity ${signed(low, 2)} to ${signed(high, 2)}`;
  return unit === "rollout" ? `rollout ${percent(low, 2)} to ${percent(high, 2)}` : `attention 0 to ${percent(high)}`;
}

/** One value with its unit. */
export function valueText({ unit, values }, patch) {
  return unit === "cosine" ? signed(values[patch], 3) : percent(values[patch], 2);
}
