/** Elements made in one expression. Attributes named `on...` are listeners; `false` and null leave an attribute out. */

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Buttons of which exactly one is pressed. Returns a function that presses one by its value. */
export function choice(holder, options, onChoose) {
  const buttons = options.map(({ value, label, title }) =>
    element("button", { type: "button", title, "data-value": value, "aria-pressed": "false", onclick: () => onChoose(value) }, label),
  );
  holder.replaceChildren(...buttons);
  return (value) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
  };
}

/** A canvas with one backing pixel per device pixel, and its context in CSS pixels. */
export function sizedContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.setTransform(w / width, 0, 0, h / height, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** An image of one pixel per value as a canvas that can be drawn larger. */
export function asCanvas(image) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
