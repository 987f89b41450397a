/** Small multiples: where the query looks in every head of every layer, drawn on one canvas. */
import { TABLE, step } from "./colours.js";
import { asCanvas, sizedContext } from "../dom.js";
import { most } from "./reading.js";

const GAP = 4;
const LABEL = { side: 26, top: 18 };
const [SMALLEST, WIDEST] = [28, 96]; // CSS pixels of a map

export class HeadGrid {
  #canvas;

  /** `on` has hover({layer, head} or null) and pick({layer, head}). */
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

  draw(reading, { width, query, layer, head, isShared, ink, accent }) {
    const maps = [];
    for (let l = 1; l <= reading.layers; l++) {
      for (let h = 0; h < reading.heads; h++) maps.push(reading.headMap(l, h, query));
    }
    const highest = isShared ? Math.max(...maps.map(most)) : null;
    const geometry = layout(reading, width);
    const context = sizedContext(this.#canvas, width, geometry.height);
    context.imageSmoothingEnabled = false;
    const sheet = asCanvas(sheetOf(maps, reading, highest));
    const [rows, columns] = reading.grid;
    maps.forEach((_, number) => {
      const [x, y] = geometry.place(Math.floor(number / reading.heads) + 1, number % reading.heads);
      context.drawImage(sheet, 0, number * rows, columns, rows, x, y, geometry.tile.width, geometry.tile.height);
    });
    labels(context, geometry, reading, ink);
    const [x, y] = geometry.place(Math.max(layer, 1), head);
    context.strokeStyle = accent;
    context.lineWidth = 3;
    context.strokeRect(x - 1.5, y - 1.5, geometry.tile.width + 3, geometry.tile.height + 3);
    this.#canvas.geometry = geometry;
  }
}

/** Layers run across, in as many bands as leave the maps legible, or heads do: whichever is lower. */
function layout(reading, width) {
  const bands = [1, 2, 3, 4].map((count) => arranged(reading, width, true, Math.ceil(reading.layers / count)));
  const options = [...bands, arranged(reading, width, false, reading.heads)];
  const legible = options.filter(({ tile }) => tile.width >= SMALLEST);
  return legible.length ? legible.reduce((best, one) => (one.height < best.height ? one : best)) : options.at(-1);
}

function arranged({ grid: [rows, columns], layers, heads }, width, layersAcross, across) {
  const tile = { width: Math.min(Math.max(Math.floor((width - LABEL.side) / across - GAP), 6), WIDEST) };
  tile.height = Math.max(Math.round((tile.width * rows) / columns), 6);
  const down = layersAcross ? heads : layers;
  const [stepX, stepY] = [tile.width + GAP, tile.height + GAP];
  const band = LABEL.top + down * stepY;
  const place = (layer, head) => {
    const [column, row] = layersAcross ? [(layer - 1) % across, head] : [head, layer - 1];
    const top = layersAcross ? Math.floor((layer - 1) / across) * band : 0;
    return [LABEL.side + column * stepX, top + LABEL.top + row * stepY];
  };
  const at = (x, y) => {
    const [column, above] = [Math.floor((x - LABEL.side) / stepX), Math.floor(y / band)];
    const row = Math.floor((y - above * band - LABEL.top) / stepY);
    const found = layersAcross ? { layer: above * across + column + 1, head: row } : { layer: row + 1, head: column };
    return column < 0 || row < 0 || column >= across || row >= down || found.layer > layers ? null : found;
  };
  const height = (layersAcross ? Math.ceil(layers / across) : 1) * band;
  return { tile, place, at, across, layersAcross, height };
}

/** All maps below one another, one pixel per patch. Each is bright at its own maximum, or all at the highest. */
function sheetOf(maps, reading, highest) {
  const [rows, columns] = reading.grid;
  const image = new ImageData(columns, rows * maps.length);
  const bytes = image.data;
  let at = 0;
  for (const map of maps) {
    const high = highest ?? most(map);
    for (let i = 0; i < map.length; i++, at += 4) {
      const colour = 3 * step(map[i], 0, high);
      bytes[at] = TABLE[colour];
      bytes[at + 1] = TABLE[colour + 1];
      bytes[at + 2] = TABLE[colour + 2];
      bytes[at + 3] = reading.kept[i] ? 255 : 0;
    }
  }
  return image;
}

function labels(context, geometry, { layers, heads }, ink) {
  context.fillStyle = ink;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const { tile, layersAcross, across } = geometry;
  for (let layer = 1; layer <= layers; layer++) label(context, geometry.place(layer, 0), tile, layersAcross, `${layer}`);
  for (let band = 1; band <= (layersAcross ? layers : 1); band += across) {
    for (let head = 0; head < heads; head++) label(context, geometry.place(band, head), tile, !layersAcross, `h${head + 1}`);
  }
}

function label(context, [x, y], tile, isAbove, text) {
  context.textAlign = isAbove ? "center" : "right";
  context.fillText(text, isAbove ? x + tile.width / 2 : x - 6, isAbove ? y - LABEL.top / 2 : y + tile.height / 2);
}
