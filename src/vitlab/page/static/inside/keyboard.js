/** Every key of the page, as one table that the help also shows. */
import { brush } from "./editing.js";
import { isTyping } from "./picture_input.js";
import { VIEWS } from "./permalink.js";

export const KEYS = [
  { keys: ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"], shown: "← → ↑ ↓", what: "move the query patch" },
  { keys: ["[", "]"], shown: "[ ]", what: "previous, next layer" },
  { keys: [",", "."], shown: ", .", what: "previous, next head" },
  { keys: ["c"], shown: "c", what: "look from the class token" },
  { keys: ["m"], shown: "m", what: "look from the average patch" },
  { keys: ["1", "2", "3", "4", "5"], shown: "1 – 5", what: "rollout, one head, similarity, colours, picture" },
  { keys: ["-", "="], shown: "- =", what: "less, more of the overlay" },
  { keys: ["g"], shown: "g", what: "grey out the query patch, or restore it" },
  { keys: ["x"], shown: "x", what: "drop the query patch, or restore it" },
  { keys: ["s"], shown: "s", what: "shuffle all patches" },
  { keys: ["u"], shown: "u", what: "undo all edits" },
  { keys: ["o"], shown: "o", what: "open a picture" },
  { keys: ["?"], shown: "?", what: "this help" },
];

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

export function connectKeyboard(store, { click, showHelp }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const { first, query } = store.state;
    if (event.key === "?") showHelp();
    else if (event.key === "o") click("open-file");
    else if (event.key in MOVES && first?.patches) store.set({ query: moved(query, MOVES[event.key], first.grid) });
    else if (!first?.patches || !pressed(store, event.key, first, click)) return;
    event.preventDefault();
    store.set({ hover: null });
  });
}

function pressed(store, key, { layers, heads, prefix }, click) {
  const { layer, head, query, opacity, edits } = store.state;
  const changes = {
    "[": { layer: clamp(layer - 1, 0, layers) },
    "]": { layer: clamp(layer + 1, 0, layers) },
    ",": { head: clamp(head - 1, 0, heads - 1), view: "head" },
    ".": { head: clamp(head + 1, 0, heads - 1), view: "head" },
    c: prefix ? { query: "class" } : {},
    m: { query: "mean" },
    "-": { opacity: clamp(opacity - 5, 0, 100) },
    "=": { opacity: clamp(opacity + 5, 0, 100) },
  }[key] ?? (VIEWS[Number(key) - 1] ? { view: VIEWS[Number(key) - 1] } : null);
  if (changes) store.set(changes);
  else if (key === "s") click("shuffle");
  else if (key === "u") click("undo-edits");
  else if ((key === "g" || key === "x") && typeof query === "number") {
    const marks = key === "g" ? edits.grey : edits.drop;
    brush(store, query, marks[query] ? "restore" : key === "g" ? "grey" : "drop");
  } else return false;
  return true;
}

/** The patch beside the query; from no patch, the one in the middle. */
function moved(query, [down, across], [rows, columns]) {
  if (typeof query !== "number") return Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const row = clamp(Math.floor(query / columns) + down, 0, rows - 1);
  return row * columns + clamp((query % columns) + across, 0, columns - 1);
}
