/** What the weights show before any picture: filters of the patch embedding, similarity of positions. */
import { TABLE } from "./colours.js";
import { asCanvas, sizedContext } from "../dom.js";

function bytes(text) {
  const characters = atob(text);
  return Uint8Array.from(characters, (character) => character.charCodeAt(0));
}

/** Draw the filters (k, P, P, 3) as pictures; returns what the caption says about them. */
export function drawFilters(canvas, { filters }, width) {
  const [count, side] = filters.shape;
  const gap = 4;
  const across = Math.min(count, width < 300 ? 7 : 10);
  const tile = Math.min(Math.floor((width - gap * (across - 1)) / across), 44);
  const context = sizedContext(canvas, width, Math.ceil(count / across) * (tile + gap) - gap);
  context.imageSmoothingEnabled = false;
  const values = bytes(filters.values);
  for (let number = 0; number < count; number++) {
    const image = new ImageData(side, side);
    for (let i = 0; i < side * side; i++) {
      image.data.set(values.subarray(3 * (number * side * side + i), 3 * (number * side * side + i + 1)), 4 * i);
      image.data[4 * i + 3] = 255;
    }
    context.drawImage(asCanvas(image), (number % across) * (tile + gap), Math.floor(number / across) * (tile + gap), tile, tile);
  }
  const total = filters.share.reduce((sum, one) => sum + one, 0);
  return { count, share: total };
}

/** One tile per patch: how similar its position is to all others. The query's tile is marked; a click makes a query. */
export class PositionTiles {
  #canvas;
  #sheet = { values: null, canvas: null };
  #grid = [1, 1];

  constructor(canvas, on) {
    this.#canvas = canvas;
    canvas.addEventListener("pointermove", (event) => on.hover(this.#at(event)));
    canvas.addEventListener("pointerleave", () => on.hover(null));
    canvas.addEventListener("click", (event) => on.pick(this.#at(event)));
  }

  /** The place of the pointer as shares of the picture's height and width: grids of other sizes can use it. */
  #at(event) {
    const [rows, columns] = this.#grid;
    const box = this.#canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return { down: (row + 0.5) / rows, across: (column + 0.5) / columns };
  }

  /** `query` is {down, across} or null. */
  draw({ positions }, width, query, accent) {
    const [rows, columns] = positions.grid;
    this.#grid = positions.grid;
    const side = width / columns;
    const context = sizedContext(this.#canvas, width, side * rows);
    context.imageSmoothingEnabled = false;
    const sheet = this.#sheetOf(positions);
    const gap = Math.max(side * 0.08, 0.5);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const from = [column * columns, row * rows, columns, rows];
        context.drawImage(sheet, ...from, column * side, row * side, side - gap, side - gap);
      }
    }
    if (!query) return;
    const [row, column] = [Math.floor(query.down * rows), Math.floor(query.across * columns)];
    context.strokeStyle = accent;
    context.lineWidth = 3;
    context.strokeRect(column * side - 1, row * side - 1, side - gap + 2, side - gap + 2);
  }

  #sheetOf({ grid: [rows, columns], values }) {
    if (this.#sheet.values === values) return this.#sheet.canvas;
    const similarity = bytes(values);
    const image = new ImageData(columns * columns, rows * rows);
    for (let i = 0; i < rows * columns; i++) {
      for (let j = 0; j < rows * columns; j++) {
        const x = (i % columns) * columns + (j % columns);
        const y = Math.floor(i / columns) * rows + Math.floor(j / columns);
        const at = 3 * similarity[i * rows * columns + j];
        image.data.set([...TABLE.subarray(at, at + 3), 255], 4 * (y * image.width + x));
      }
    }
    this.#sheet = { values, canvas: asCanvas(image) };
    return this.#sheet.canvas;
  }
}
