/** Tools that take parts of the picture away: brush, shuffle, drop. */
import { brushed, dropped, editsText, isEdited, noEdits, reshuffled } from "./edits.js";
import { $, choice } from "../dom.js";
import { largest, shuffled } from "./maths.js";
import { gridAt, hasLayers } from "./reading.js";
import { sizeFor } from "./tracing.js";

export const TOOLS = [
  { value: "look", label: "Look", title: "A click on a patch makes it the query" },
  { value: "grey", label: "Grey out", title: "Paint over patches with grey: the model still sees a patch there" },
  { value: "drop", label: "Drop", title: "Take patches out of the sequence: the model gets fewer tokens" },
  { value: "restore", label: "Restore", title: "Brush edits away again" },
];
const LOOKED_AT = 0.2; // share of the patches that "drop what it looks at" takes away

export function connectEditing(store, card) {
  const press = choice($("tools"), TOOLS, (tool) => store.set({ tool }));
  const show = ({ tool, edits }) => {
    press(tool);
    $("patches").classList.toggle("brushing", tool !== "look");
    $("undo-edits").disabled = !isEdited(edits);
    $("edits-text").textContent = isEdited(edits) ? `Edited: ${editsText(edits)}.` : "";
  };
  store.on(["tool", "edits"], show);
  show(store.state);
  $("shuffle").addEventListener("click", () => {
    store.set({ edits: reshuffled(store.state.edits) });
  });
  $("drop-half").addEventListener("click", () => {
    const { edits } = store.state;
    const patches = edits.drop.length;
    store.set({ edits: dropped(noEdits(patches), shuffled(patches, 1 + seedOf(edits)).subarray(0, Math.floor(patches / 2))) });
  });
  $("drop-seen").addEventListener("click", () => {
    const { first, query, layer } = store.state;
    if (!first || !hasLayers(first.card)) return;
    const seen = first.rollout(Math.max(layer, 1), query).map((value, i) => (first.kept[i] ? value : -1));
    const most = largest(seen, Math.ceil(LOOKED_AT * first.patches)).filter(({ value }) => value >= 0);
    store.set({ edits: dropped(store.state.edits, most.map(({ index }) => index)) });
  });
  $("undo-edits").addEventListener("click", () => store.set({ edits: fresh(store.state, card) }));
}

/** Another half every time: the number of dropped patches of the last one is as good a seed as any. */
function seedOf(edits) {
  return edits.drop.reduce((sum, one, i) => (sum + one * (i + 1)) >>> 0, 0);
}

/** No edits, for the grid of the state's model and size. */
export function fresh({ model, size }, card) {
  const [rows, columns] = gridAt(card(model), sizeFor(card(model), size));
  return noEdits(rows * columns);
}

/** Apply the tool of the state to a patch. */
export function brush(store, patch, tool = store.state.tool) {
  if (store.state.edits.drop.length > patch) store.set({ edits: brushed(store.state.edits, patch, tool) });
}
