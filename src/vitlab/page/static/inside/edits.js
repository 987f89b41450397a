/** Edits of the picture, patch by patch: greyed out, dropped, shuffled. Pure functions; the views are in editing.js. */
import { shuffled } from "./maths.js";

export const GREY = 128; // in each of 0..255; a patch of one colour without content

export function noEdits(patches) {
  return { grey: new Uint8Array(patches), drop: new Uint8Array(patches), shuffle: 0 };
}

export function isEdited(edits) {
  return edits.shuffle !== 0 || edits.grey.includes(1) || edits.drop.includes(1);
}

/** Set one patch to "grey", "drop" or "restore"; returns the same edits if nothing changes. */
export function brushed(edits, patch, tool) {
  const [grey, drop] = [Number(tool === "grey"), Number(tool === "drop")];
  if (edits.grey[patch] === grey && edits.drop[patch] === drop) return edits;
  const found = { ...edits, grey: edits.grey.slice(), drop: edits.drop.slice() };
  found.grey[patch] = grey;
  found.drop[patch] = drop;
  return found;
}

/** Drop these patches, and those that are dropped already. */
export function dropped(edits, patches) {
  const found = { ...edits, grey: edits.grey.slice(), drop: edits.drop.slice() };
  for (const patch of patches) [found.drop[patch], found.grey[patch]] = [1, 0];
  return found;
}

/** Shuffle once more; what is greyed out or dropped moves with its patch. */
export function reshuffled(edits) {
  const [patches, shuffle] = [edits.drop.length, edits.shuffle + 1];
  const [before, after] = [shuffled(patches, edits.shuffle), shuffled(patches, shuffle)];
  const place = new Int32Array(patches);
  before.forEach((source, at) => {
    place[source] = at;
  });
  const moved = (marks) => Uint8Array.from(after, (source) => marks[place[source]]);
  return { grey: moved(edits.grey), drop: moved(edits.drop), shuffle };
}

/** Patches that take part: 1, or 0 for dropped ones. */
export const keptPatches = (edits) => edits.drop.map((is) => 1 - is);

/** Pixels (H, W, 3) after shuffling, then greying out. Dropped patches keep their pixels; the model leaves them out. */
export function editedPixels(pixels, [height, width], [rows, columns], edits) {
  if (edits.shuffle === 0 && !edits.grey.includes(1)) return pixels;
  const [high, wide] = [height / rows, width / columns];
  const order = shuffled(rows * columns, edits.shuffle);
  const found = new Uint8Array(pixels.length);
  for (let patch = 0; patch < rows * columns; patch++) {
    const [top, left] = [Math.floor(patch / columns) * high, (patch % columns) * wide];
    const [fromTop, fromLeft] = [Math.floor(order[patch] / columns) * high, (order[patch] % columns) * wide];
    for (let y = 0; y < high; y++) {
      const to = 3 * ((top + y) * width + left);
      const from = 3 * ((fromTop + y) * width + fromLeft);
      if (edits.grey[patch]) found.fill(GREY, to, to + 3 * wide);
      else found.set(pixels.subarray(from, from + 3 * wide), to);
    }
  }
  return found;
}

/** How the edits are called in a sentence. */
export function editsText(edits) {
  const count = (marks, what) => {
    const number = marks.reduce((total, one) => total + one, 0);
    return number ? `${number} patch${number === 1 ? "" : "es"} ${what}` : "";
  };
  const said = [count(edits.grey, "greyed out"), count(edits.drop, "dropped"), edits.shuffle ? "patches shuffled" : ""];
  return said.filter(Boolean).join(", ");
}

/** Marks as text for a link: bits, the first patch in the lowest bit of the first byte, as base64 for URLs. */
export function packed(marks) {
  const bytes = new Uint8Array(Math.ceil(marks.length / 8));
  marks.forEach((is, i) => {
    bytes[i >> 3] |= is << (i & 7);
  });
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** The marks of `packed`; none if the text is not theirs. */
export function unpacked(text, patches) {
  const marks = new Uint8Array(patches);
  try {
    const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    if (bytes.length !== Math.ceil(patches / 8)) return marks;
    for (let i = 0; i < patches; i++) marks[i] = (bytes.charCodeAt(i >> 3) >> (i & 7)) & 1;
  } catch {
    // a link that was cut off or edited: without these marks the rest of it is still good
  }
  return marks;
}
