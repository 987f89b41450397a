/** Attention distance: one dot per head, how far it looks on average, by layer. Click a dot to see that head. */
import { svg } from "../dom.js";

const SIZE = { width: 460, height: 230, left: 44, right: 8, top: 12, bottom: 34 };

/** `on` has hover({layer, head} or null) and pick({layer, head}). Returns the SVG element. */
export function drawDistances(reading, { layer, head }, on = {}) {
  const { width, height, left, right, top, bottom } = SIZE;
  const highest = Math.max(...reading.distances, reading.evenDistance) * 1.08;
  const x = (at) => left + ((at - 0.5) / reading.layers) * (width - left - right);
  const y = (pixels) => height - bottom - (pixels / highest) * (height - top - bottom);
  const label = "Scatter plot: mean attention distance in pixels of every head, by layer";
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "chart" });
  for (const tick of ticks(highest)) {
    chart.append(
      svg("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "rule" }),
      svg("text", { x: left - 6, y: y(tick) + 4, class: "tick end" }, `${tick}`),
    );
  }
  const every = reading.layers > 16 ? 4 : 1;
  for (let at = every; at <= reading.layers; at += every) {
    chart.append(svg("text", { x: x(at), y: height - bottom + 15, class: "tick middle" }, `${at}`));
  }
  chart.append(
    svg("text", { x: (left + width) / 2, y: height - 4, class: "tick middle" }, "layer"),
    svg("text", { x: 12, y: (height - bottom) / 2, transform: `rotate(-90 12 ${(height - bottom) / 2})`, class: "tick middle" }, "distance in pixels"),
    svg("line", { x1: left, x2: width - right, y1: y(reading.evenDistance), y2: y(reading.evenDistance), class: "even" }),
    svg("text", { x: left + 4, y: y(reading.evenDistance) - 5, class: "tick" }, "even attention"),
  );
  reading.distances.forEach((pixels, number) => {
    const place = { layer: Math.floor(number / reading.heads) + 1, head: number % reading.heads };
    const isChosen = place.layer === Math.max(layer, 1) && place.head === head;
    const text = `layer ${place.layer}, head ${place.head + 1}: ${pixels.toFixed(1)} pixels`;
    chart.append(
      svg(
        "circle",
        {
          cx: x(place.layer), cy: y(pixels), r: isChosen ? 6.5 : 4.5, class: isChosen ? "dot chosen" : "dot",
          "data-layer": place.layer, "data-head": place.head, "data-pixels": pixels,
          onclick: () => on.pick?.(place), onpointerenter: () => on.hover?.(place), onpointerleave: () => on.hover?.(null),
        },
        svg("title", {}, text),
      ),
    );
  });
  return chart;
}

/** Round numbers from 0 to the highest, about five of them. */
function ticks(highest) {
  const rough = highest / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const width = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  return Array.from({ length: Math.floor(highest / width) + 1 }, (_, i) => Number((i * width).toPrecision(3)));
}
