/** The picture with its patches: what a view paints over it, the query, and the edits. Hover previews, a click fixes. */
import { painted, paintedColours } from "./colours.js";
import { asCanvas, sizedContext } from "../dom.js";

export class PatchCanvas {
  #canvas;
  #grid = [1, 1];
  #backdrop = { pixels: null, canvas: null };
  #isDown = false;
  #last = -1;

  /** `on` has hover(patch or null), pick(patch) and brush(patch), each optional; `brushes()` says whether to brush. */
  constructor(canvas, on = {}) {
    this.#canvas = canvas;
    const patch = (event) => this.#patchAt(event);
    canvas.addEventListener("pointermove", (event) => {
      const at = patch(event);
      if (at === this.#last && !this.#isDown) return;
      this.#last = at;
      if (this.#isDown && on.brushes?.()) on.brush(at);
      else on.hover?.(at);
    });
    canvas.addEventListener("pointerleave", () => {
      this.#last = -1;
      on.hover?.(null);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.#isDown = true;
      if (on.brushes?.()) {
        canvas.setPointerCapture?.(event.pointerId);
        on.brush(patch(event));
      } else on.pick?.(patch(event));
    });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      canvas.addEventListener(end, () => {
        this.#isDown = false;
      });
    }
  }

  #patchAt(event) {
    const [rows, columns] = this.#grid;
    const box = this.#canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return Math.min(Math.max(row, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1);
  }

  /** Draw a reading `width` CSS pixels wide. `over` comes from `overlay`; `query` is a patch or no number. */
  draw(reading, { width, over, opacity, query, hovered, edits }) {
    const [rows, columns] = reading.grid;
    const [high, wide] = reading.size;
    const height = Math.round((width * high) / wide);
    const context = sizedContext(this.#canvas, width, height);
    context.imageSmoothingEnabled = true;
    context.drawImage(this.#picture(reading), 0, 0, width, height);
    if (!rows) return;
    this.#grid = reading.grid;
    const cell = { width: width / columns, height: height / rows };
    const box = (patch) => [(patch % columns) * cell.width, Math.floor(patch / columns) * cell.height, cell.width, cell.height];
    if (over) {
      const image = over.kind === "colours"
        ? paintedColours(over.colours, reading.grid, reading.kept)
        : painted(over.values, reading.grid, over.low, over.high, reading.kept);
      context.imageSmoothingEnabled = false;
      context.globalAlpha = opacity / 100;
      context.drawImage(asCanvas(image), 0, 0, width, height);
      context.globalAlpha = 1;
    }
    if (edits?.drop.length === rows * columns) {
      edits.drop.forEach((is, patch) => {
        if (is) this.#dropped(context, ...box(patch));
      });
      edits.grey.forEach((is, patch) => {
        if (is) outlined(context, box(patch), "rgb(255 255 255 / 45%)", 1, 0.5);
      });
    }
    if (typeof hovered === "number" && hovered !== query) outlined(context, box(hovered), "#fff", 1.5, 0.75);
    if (typeof query === "number") {
      outlined(context, box(query), "#fff", 5, -0.5);
      outlined(context, box(query), "#e0115f", 3, -0.5);
    }
  }

  /** A patch that takes no part: dark, with a cross. */
  #dropped(context, x, y, width, height) {
    context.fillStyle = "#15181d";
    context.fillRect(x, y, width, height);
    context.strokeStyle = "#5c6570";
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x + width * 0.3, y + height * 0.3);
    context.lineTo(x + width * 0.7, y + height * 0.7);
    context.moveTo(x + width * 0.7, y + height * 0.3);
    context.lineTo(x + width * 0.3, y + height * 0.7);
    context.stroke();
  }

  #picture({ pixels, size }) {
    if (this.#backdrop.pixels !== pixels) this.#backdrop = { pixels, canvas: asCanvas(withAlpha(pixels, size)) };
    return this.#backdrop.canvas;
  }
}

function outlined(context, [x, y, width, height], colour, line, inset) {
  context.strokeStyle = colour;
  context.lineWidth = line;
  context.strokeRect(x + inset, y + inset, width - 2 * inset, height - 2 * inset);
}

/** Pixels (H, W, 3) as an image. */
export function withAlpha(pixels, [height, width]) {
  const image = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    image.data.set(pixels.subarray(3 * i, 3 * i + 3), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  return image;
}
