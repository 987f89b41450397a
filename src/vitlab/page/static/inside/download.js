/** The current figure as SVG or PNG. A PNG is the SVG drawn on a canvas, so both show the same. */
import { hex } from "./colours.js";
import { asCanvas, element, percent, svg } from "../dom.js";
import { largest } from "./maths.js";
import { withAlpha } from "./patch_canvas.js";
import { hasLayers, overlay } from "./reading.js";
import { legendText, sentence } from "./sentences.js";
import { shortName } from "./answers.js";

const SIDE = 480;
const MARGIN = 20;
const FONT = "system-ui, sans-serif";

/** The picture with its patches, a legend, the caption and the answers as one SVG element. */
export function figure(state) {
  const { first: reading, query, opacity } = state;
  const [high, wide] = reading.size;
  const height = Math.round((SIDE * high) / wide);
  const over = overlay(reading, state);
  const lines = wrapped(sentence(reading, state), 78);
  const answers = largest(reading.final, 5);
  const total = MARGIN + height + 46 + 18 * lines.length + 22 * answers.length + MARGIN + 26;
  const made = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg", width: SIDE + 2 * MARGIN, height: total,
    viewBox: `0 0 ${SIDE + 2 * MARGIN} ${total}`, "font-family": FONT, "font-size": 13, fill: "#1d2329",
  });
  made.append(
    svg("rect", { width: SIDE + 2 * MARGIN, height: total, fill: "#ffffff" }),
    svg("image", { x: MARGIN, y: MARGIN, width: SIDE, height, href: asCanvas(withAlpha(reading.pixels, reading.size)).toDataURL() }),
  );
  if (over) made.append(patches(reading, over, height, opacity / 100));
  if (typeof query === "number" && hasLayers(reading.card)) made.append(box(reading, query, height, { fill: "none", stroke: "#e0115f", "stroke-width": 3 }));
  let y = MARGIN + height + 18;
  if (over?.kind === "values") made.append(...legend(over, y));
  y += 30;
  for (const line of lines) made.append(svg("text", { x: MARGIN, y: (y += 18) - 18 }, line));
  y += 6;
  for (const { index, value } of answers) {
    const name = shortName(reading.className(index)).slice(0, 30);
    made.append(
      svg("text", { x: MARGIN, y: y + 4 }, name),
      svg("rect", { x: MARGIN + 200, y: y - 7, width: Math.max(200 * value, 0.5), height: 12, fill: "#2f6fab" }),
      svg("text", { x: SIDE + MARGIN, y: y + 4, "text-anchor": "end" }, percent(value)),
    );
    y += 22;
  }
  made.append(svg("text", { x: MARGIN, y: total - MARGIN + 6, fill: "#5b6672", "font-size": 11 }, `${reading.card.name}, ${wide} × ${high} pixels`));
  return made;
}

function cell(reading, patch, height) {
  const [rows, columns] = reading.grid;
  const [w, h] = [SIDE / columns, height / rows];
  return { x: MARGIN + (patch % columns) * w, y: MARGIN + Math.floor(patch / columns) * h, width: w, height: h };
}

function box(reading, patch, height, attributes) {
  return svg("rect", { ...cell(reading, patch, height), ...attributes });
}

function patches(reading, over, height, opacity) {
  const group = svg("g", { opacity, "shape-rendering": "crispEdges" });
  for (let patch = 0; patch < reading.patches; patch++) {
    const at = 3 * patch;
    const colour = over.kind === "colours"
      ? `rgb(${over.colours.slice(at, at + 3).join(",")})`
      : hex(over.values[patch], over.low, over.high);
    const fill = reading.kept[patch] ? colour : "#15181d";
    group.append(box(reading, patch, height, { fill, "data-value": over.values?.[patch] }));
  }
  return group;
}

function legend(over, y) {
  const steps = 64;
  const bars = Array.from({ length: steps }, (_, i) =>
    svg("rect", { x: MARGIN + 3 * i, y: y - 9, width: 3.2, height: 10, fill: hex(i, 0, steps - 1) }),
  );
  return [...bars, svg("text", { x: MARGIN + 3 * steps + 8, y }, legendText(over))];
}

function wrapped(text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1).length + word.length + 1 > width) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines;
}

export function svgBlob(made) {
  return new Blob([new XMLSerializer().serializeToString(made)], { type: "image/svg+xml" });
}

/** Draw an SVG element twice as large as it says, for screens with many pixels. */
export async function pngBlob(made) {
  const url = URL.createObjectURL(svgBlob(made));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Save the figure of the state under a name that says what it shows. */
export async function download(state, format) {
  const made = figure(state);
  const blob = format === "svg" ? svgBlob(made) : await pngBlob(made);
  const url = URL.createObjectURL(blob);
  const view = hasLayers(state.first.card) ? state.view : "answer";
  const what = view === "head" ? `layer${Math.max(state.layer, 1)}-head${state.head + 1}` : view;
  element("a", { href: url, download: `vitlab-${what}.${format}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
