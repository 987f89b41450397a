/** Layer by layer: rollout, similarity to the query, and colours by content after every layer, on one canvas. */
import { painted, paintedColours } from "./colours.js";
import { asCanvas, sizedContext } from "./dom.js";
import { overlay } from "./reading.js";

const GAP = 4;
const LABEL = { top: 18, row: 18 };
const ROWS = [
  { view: "rollout", label: "Rollout", what: "where its information comes from, through this layer" },
  { view: "similarity", label: "Similarity", what: "which patches are like it after this layer" },
  { view: "colours", label: "Colours by content", what: "patches alike after this layer have like colours" },
];
const COLOURS = 2; // the row of colours

export class LayerStrip {
  #canvas;
  #drawing = 0;
  #tiles = new WeakMap();

  /** `on` has hover({layer, view} or null) and pick({layer, view}). */
  constructor(canvas, on) {
    this.#canvas = canvas;
    canvas.addEventListener("pointermove", (event) => on.hover(this.#at(event)));
    canvas.addEventListener("pointerleave", () => on.hover(null));
    canvas.addEventListener("click", (event) => {
      const found = this.#at(event);
      if (found) on.pick(found);
    });
  }

  #at(event) {
    const box = this.#canvas.getBoundingClientRect();
    return this.#canvas.geometry?.at(event.clientX - box.left, event.clientY - box.top) ?? null;
  }

  /** Draw at once what is quick; the colours follow layer by layer, so that the page stays responsive. */
  draw(reading, { width, query, layer, view, ink, accent }) {
    const drawing = ++this.#drawing;
    const geometry = layout(reading, width);
    const context = sizedContext(this.#canvas, width, geometry.height);
    this.#canvas.geometry = geometry;
    context.imageSmoothingEnabled = false;
    labels(context, geometry, reading, ink);
    maps(context, geometry, reading, query);
    const chosen = ROWS.findIndex((row) => row.view === view);
    if (chosen >= 0) {
      const [x, y] = geometry.place(chosen, view === "rollout" ? Math.max(layer, 1) : layer);
      context.strokeStyle = accent;
      context.lineWidth = 3;
      context.strokeRect(x - 1.5, y - 1.5, geometry.tile.width + 3, geometry.tile.height + 3);
    }
    const colourFrom = (at) => {
      if (drawing !== this.#drawing || at > reading.layers) return;
      const [x, y] = geometry.place(COLOURS, at);
      context.drawImage(this.#colours(reading, at), x, y, geometry.tile.width, geometry.tile.height);
      if (reading.hasColours(at + 1)) colourFrom(at + 1);
      else setTimeout(() => colourFrom(at + 1));
    };
    colourFrom(0);
  }

  /** The colours of a layer, which no query changes, as a canvas. */
  #colours(reading, layer) {
    if (!this.#tiles.has(reading)) this.#tiles.set(reading, []);
    const known = this.#tiles.get(reading);
    known[layer] ??= asCanvas(paintedColours(reading.colours(layer).colours, reading.grid, reading.kept));
    return known[layer];
  }
}

/** Draw rollout and similarity of every layer, by way of one sheet with a pixel per patch. */
function maps(context, geometry, reading, query) {
  const [rows, columns] = reading.grid;
  const sheet = document.createElement("canvas");
  [sheet.width, sheet.height] = [2 * columns, rows * (reading.layers + 1)];
  const target = sheet.getContext("2d");
  for (let layer = 0; layer <= reading.layers; layer++) {
    ["rollout", "similarity"].forEach((view, row) => {
      if (view === "rollout" && layer === 0) return;
      const { values, low, high } = overlay(reading, { view, layer, query });
      target.putImageData(painted(values, reading.grid, low, high, reading.kept), row * columns, layer * rows);
    });
  }
  for (let layer = 0; layer <= reading.layers; layer++) {
    for (const row of [0, 1]) {
      const from = [row * columns, layer * rows, columns, rows];
      if (row || layer) context.drawImage(sheet, ...from, ...geometry.place(row, layer), geometry.tile.width, geometry.tile.height);
    }
  }
}

/** One row per kind of map; two lines of tiles where the page is narrow. */
function layout(reading, width) {
  const [rows, columns] = reading.grid;
  const count = reading.layers + 1;
  const lines = width < 520 && count > 8 ? 2 : 1;
  const across = Math.ceil(count / lines);
  const tile = { width: Math.max(Math.floor((width - GAP * (across - 1) - 4) / across), 6) };
  tile.width = Math.min(tile.width, 96);
  tile.height = Math.max(Math.round((tile.width * rows) / columns), 6);
  const line = LABEL.top + tile.height;
  const group = LABEL.row + lines * line + 6;
  const place = (row, layer) => [
    2 + (layer % across) * (tile.width + GAP),
    row * group + LABEL.row + Math.floor(layer / across) * line + LABEL.top,
  ];
  const at = (x, y) => {
    const row = Math.floor(y / group);
    const below = y - row * group - LABEL.row;
    const layer = Math.floor(below / line) * across + Math.floor((x - 2) / (tile.width + GAP));
    if (row >= ROWS.length || below < 0 || x < 2 || x > 2 + across * (tile.width + GAP) || layer >= count) return null;
    return { layer, view: ROWS[row].view };
  };
  return { tile, place, at, group, isWide: width >= 480, height: ROWS.length * group };
}

function labels(context, geometry, reading, ink) {
  context.fillStyle = ink;
  context.textBaseline = "middle";
  ROWS.forEach(({ view, label, what }, row) => {
    context.textAlign = "left";
    context.font = "12px system-ui, sans-serif";
    context.fillText(geometry.isWide ? `${label}: ${what}` : label, 2, row * geometry.group + LABEL.row / 2 + 1);
    context.textAlign = "center";
    context.font = "11px system-ui, sans-serif";
    for (let layer = view === "rollout" ? 1 : 0; layer <= reading.layers; layer++) {
      const [x, y] = geometry.place(row, layer);
      context.fillText(`${layer}`, x + geometry.tile.width / 2, y - LABEL.top / 2 + 1);
    }
  });
}
