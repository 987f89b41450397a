/** The resolution slider: positions are interpolated, the grid of patches grows (section 3.2 of the paper). */
import { $ } from "../dom.js";
import { noEdits } from "./edits.js";
import { gridAt } from "./reading.js";
import { sizeFor } from "./tracing.js";

export function connectResolution(store, card) {
  const slider = $("size");
  slider.addEventListener("input", () => {
    const { model, size, query } = store.state;
    const next = card(model).sizes[Number(slider.value)];
    const [rows, columns] = gridAt(card(model), next);
    const old = gridAt(card(model), sizeFor(card(model), size));
    store.set({ size: next, query: atSamePlace(query, old, [rows, columns]), edits: noEdits(rows * columns), hover: null });
  });
  const show = ({ model, size }) => {
    const { sizes } = card(model);
    const at = sizes.findIndex((one) => one.join() === sizeFor(card(model), size).join());
    [slider.max, slider.value] = [sizes.length - 1, at];
    const [height, width] = sizes[at];
    const [rows, columns] = gridAt(card(model), sizes[at]);
    $("size-text").textContent = rows ? `${width} × ${height}, ${rows * columns} patches` : `${width} × ${height}`;
    $("size-field").hidden = sizes.length < 2;
  };
  store.on(["model", "size"], show);
  show(store.state);
}

/** The patch of another grid at the place of this one. */
export function atSamePlace(query, [rows, columns], [newRows, newColumns]) {
  if (typeof query !== "number") return query;
  const row = Math.floor(((Math.floor(query / columns) + 0.5) / rows) * newRows);
  return row * newColumns + Math.floor((((query % columns) + 0.5) / columns) * newColumns);
}
