/** The address of the view: everything but the pixels of a picture of one's own. */
import { isEdited, noEdits, packed, unpacked } from "./edits.js";
import { gridAt } from "./reading.js";
import { sizeFor } from "./tracing.js";

export const VIEWS = ["rollout", "head", "similarity", "colours", "picture"];

/** The state as the part of an address after "#". */
export function toHash(state) {
  const { picture, model, other, size, layer, head, query, view, opacity, edits, isShared } = state;
  const parts = new URLSearchParams();
  if (picture) parts.set("picture", picture.kind === "sample" ? picture.name : "own");
  parts.set("model", model);
  if (other) parts.set("with", other);
  parts.set("size", size.join("x"));
  parts.set("view", view);
  parts.set("layer", layer);
  parts.set("head", head + 1);
  parts.set("query", query);
  parts.set("opacity", opacity);
  if (isShared) parts.set("scale", "shared");
  if (isEdited(edits)) {
    if (edits.grey.includes(1)) parts.set("grey", packed(edits.grey));
    if (edits.drop.includes(1)) parts.set("drop", packed(edits.drop));
    if (edits.shuffle) parts.set("shuffle", edits.shuffle);
  }
  return `#${parts}`;
}

/** The state that an address describes. What is missing or out of range gets the value of the guided first view. */
export function fromHash(hash, cards) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const card = cards.find(({ id }) => id === parts.get("model")) ?? cards[0];
  const other = cards.find(({ id }) => id === parts.get("with") && id !== card.id)?.id ?? null;
  const size = sizeFor(card, parts.get("size")?.split("x").map(Number));
  const [rows, columns] = gridAt(card, size);
  const patches = rows * columns;
  const edits = noEdits(patches);
  if (parts.has("grey")) edits.grey = unpacked(parts.get("grey"), patches);
  if (parts.has("drop")) edits.drop = unpacked(parts.get("drop"), patches);
  edits.shuffle = whole(parts.get("shuffle"), 0, 2 ** 31, 0);
  const first = card.prefix ? "class" : "mean";
  const query = ["class", "mean"].includes(parts.get("query"))
    ? parts.get("query")
    : whole(parts.get("query"), 0, patches - 1, first);
  return {
    sample: parts.get("picture"),
    model: card.id,
    other,
    size,
    view: VIEWS.includes(parts.get("view")) ? parts.get("view") : "rollout",
    layer: whole(parts.get("layer"), 0, card.layers, card.layers),
    head: whole(parts.get("head"), 1, Math.max(card.heads, 1), 1) - 1,
    query,
    opacity: whole(parts.get("opacity"), 0, 100, 65),
    isShared: parts.get("scale") === "shared",
    edits,
  };
}

/** The models that an address asks for and the page does not have. */
export function unknownModels(hash, cards) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const asked = [parts.get("model"), parts.get("with")].filter(Boolean);
  return asked.filter((id) => !cards.some((card) => card.id === id));
}

function whole(text, low, high, otherwise) {
  const value = /^\d{1,10}$/.test(text ?? "") ? Number(text) : NaN;
  return value >= low && value <= high ? value : otherwise;
}

/** Keep the address up to date, a moment after the last change: browsers limit how often it may change. */
export function connectPermalink(store, onAddress) {
  let timer = 0;
  let own = "";
  const keys = ["picture", "model", "other", "size", "view", "layer", "head", "query", "opacity", "isShared", "edits"];
  store.on(keys, () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      own = toHash(store.state);
      history.replaceState(null, "", own);
    }, 120);
  });
  window.addEventListener("hashchange", () => {
    if (location.hash !== own) onAddress(location.hash);
  });
}
