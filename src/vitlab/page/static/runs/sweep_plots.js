/** The points of a sweep as a picture: one setting against the result, or all settings as parallel axes. */

import { svg } from "../dom.js";
import { padded, scale, ticks } from "./chart.js";
import { percent, setting, short } from "./words.js";

const HEIGHT = 260;

/** Values of a setting along an axis: numbers by size, on a log scale over a wide range; anything else side by side. */
function axisOf(values, range) {
  const numbers = values.filter((value) => typeof value === "number");
  if (numbers.length === values.length && new Set(values).size > 1) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const isLog = low > 0 && high / low >= 8;
    const place = scale([low, high], range, isLog);
    return { place, marks: new Set(values).size <= 6 ? [...new Set(values)] : ticks(low, high, isLog), name: short };
  }
  const names = [...new Set(values.map(setting))];
  const place = scale([0, Math.max(names.length - 1, 1)], range, false);
  return { place: (value) => (names.length > 1 ? place(names.indexOf(setting(value))) : (range[0] + range[1]) / 2), marks: names, name: (value) => String(value) };
}

const hint = (point, measure) => `${point.name}: ${measure} ${percent(point.measured)}`;
const open = (point) => () => (location.hash = `#/run/${point.id}`);

function dot(point, measure, x, y) {
  const made = svg("circle", { class: `dot${point.isPicked ? " chosen" : ""}`, cx: x, cy: y, r: 6, tabindex: 0, role: "link", "aria-label": hint(point, measure), onclick: open(point), onkeydown: (event) => event.key === "Enter" && open(point)() }, svg("title", {}, hint(point, measure)));
  return made;
}

export function scatterPlot(name, points, measure, width) {
  const shown = points.filter((point) => point.measured !== null);
  const [left, right, top, bottom] = [60, width - 30, 16, HEIGHT - 44];
  const results = shown.map((point) => 100 * point.measured);
  const y = scale(padded(Math.min(...results), Math.max(...results), false), [bottom, top], false);
  const x = axisOf(shown.map((point) => point.value), [left + 20, right - 20]);
  const parts = ticks(...y.domain, false).flatMap((value) => [svg("line", { class: "rule", x1: left, x2: right, y1: y(value), y2: y(value) }), svg("text", { class: "tick end", x: left - 7, y: y(value) + 4 }, `${short(value)} %`)]);
  for (const mark of x.marks) parts.push(svg("text", { class: "tick middle", x: x.place(mark), y: bottom + 18 }, x.name(mark)));
  parts.push(svg("text", { class: "tick middle", x: (left + right) / 2, y: HEIGHT - 6 }, name));
  parts.push(...shown.map((point) => dot(point, measure, x.place(point.value), y(100 * point.measured))));
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "group", "aria-label": `${measure} by ${name}` }, ...parts);
}

export function parallelPlot(settings, points, measure, available) {
  const width = Math.max(available, 110 * (settings.length + 1)); // so that names do not overlap
  const shown = points.filter((point) => point.measured !== null);
  const [top, bottom] = [34, HEIGHT - 22];
  const results = shown.map((point) => 100 * point.measured);
  const [low, high] = [Math.min(...results), Math.max(...results)];
  const axes = settings.map((_, place) => axisOf(shown.map((point) => point.values[place]), [bottom, top]));
  const last = scale(padded(low, high, false), [bottom, top], false);
  axes.push({ place: last, marks: ticks(...last.domain, false), name: (value) => `${short(value)} %` });
  const across = scale([0, axes.length - 1], [70, width - 70], false);
  const parts = [];
  const ordered = [...shown].sort((a, b) => a.measured - b.measured);
  for (const point of ordered) {
    const at = [...point.values, 100 * point.measured].map((value, place) => `${across(place).toFixed(1)} ${axes[place].place(value).toFixed(1)}`);
    const share = high > low ? (100 * point.measured - low) / (high - low) : 1;
    const line = svg("path", { class: `way${point.isPicked ? " chosen" : ""}`, d: `M${at.join("L")}`, tabindex: 0, role: "link", "aria-label": hint(point, measure), onclick: open(point), onkeydown: (event) => event.key === "Enter" && open(point)() }, svg("title", {}, hint(point, measure)));
    line.style.setProperty("--share", share.toFixed(2));
    parts.push(line);
  }
  axes.forEach((axis, place) => {
    const x = across(place);
    parts.push(svg("line", { class: "axis", x1: x, x2: x, y1: top, y2: bottom }), svg("text", { class: "tick middle strong", x, y: 16 }, place < settings.length ? settings[place] : measure));
    for (const mark of axis.marks) parts.push(svg("text", { class: `tick halo${place ? "" : " end"}`, x: x + (place ? 7 : -7), y: axis.place(mark) + 4 }, axis.name(mark)));
  });
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "group", "aria-label": `Settings and ${measure} of each point` }, ...parts);
}
