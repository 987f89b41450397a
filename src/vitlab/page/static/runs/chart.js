/** Curves as SVG: hover or arrow keys read values, log scale, smoothing, the values as a table. */

import { element, svg } from "../dom.js";
import { duration, short } from "./words.js";

const HEIGHT = 230;
const MARGIN = { left: 54, right: 24, top: 12, bottom: 28 };
const ROWS = 200; // of the table of values
const DOTTED = 60; // points that are also drawn as dots, at most

export class Chart {
  /** `format` writes a value; `isLog` is the scale to begin with. */
  constructor(title, { caption = "", format = short, isLog = false } = {}) {
    Object.assign(this, { title, format, isLog, series: [], x: "step", smoothing: 0, cursor: null });
    this.svg = svg("svg", { class: "chart curves", role: "img", tabindex: "0" });
    this.readout = element("p", { class: "readout", "aria-live": "off" });
    this.logButton = element("button", { type: "button", class: "small", "aria-pressed": String(isLog), onclick: () => this.setLog(!this.isLog) }, "Log scale");
    this.table = element("div", { class: "scroll" });
    this.details = element("details", { ontoggle: () => this.drawTable() }, element("summary", {}, "Values"), this.table);
    const head = element("div", { class: "row apart" }, element("h3", {}, title), this.logButton);
    this.root = element("figure", { class: "panel curve" }, head, caption ? element("p", { class: "caption" }, caption) : null, this.svg, this.readout, this.details);
    this.root.hidden = true;
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.svg.addEventListener("pointerdown", (event) => this.point(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.setCursor(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("focus", () => this.readout.setAttribute("aria-live", "polite"));
    this.svg.addEventListener("blur", () => (this.readout.setAttribute("aria-live", "off"), this.setCursor(null)));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /** Series are {name, colour, xs, ys, isDashed}; xs are steps, or seconds if x is "time". */
  show(series, { x = "step", smoothing = 0 } = {}) {
    this.series = series.filter((one) => one.xs.length).map((one) => ({ ...one, smooth: smoothed(one.ys, one.isSparse ? 0 : smoothing) }));
    Object.assign(this, { x, smoothing });
    this.root.hidden = !this.series.length;
    this.draw();
    this.drawTable();
  }

  setLog(isLog) {
    this.isLog = isLog;
    this.logButton.setAttribute("aria-pressed", String(isLog));
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width || !this.series.length) return;
    const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, HEIGHT - MARGIN.bottom];
    const drawn = this.series.flatMap((one) => [...one.ys, ...one.smooth]).filter((value) => this.isShown(value));
    const xs = this.series.flatMap((one) => [one.xs[0], one.xs.at(-1)]);
    this.toX = scale([Math.min(...xs), Math.max(...xs)], [left, right], false);
    this.toY = scale(padded(least(drawn), most(drawn), this.isLog), [bottom, top], this.isLog);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", this.sentence());
    const parts = [];
    for (const value of ticks(...this.toY.domain, this.isLog)) {
      const y = this.toY(value);
      parts.push(svg("line", { class: "rule", x1: left, x2: right, y1: y, y2: y }), svg("text", { class: "tick end", x: left - 7, y: y + 4 }, this.format(value)));
    }
    for (const value of ticks(...this.toX.domain, false, Math.max(2, Math.floor(width / 110)))) {
      parts.push(svg("text", { class: "tick middle", x: this.toX(value), y: HEIGHT - 9 }, this.x === "time" ? duration(value) : short(value)));
    }
    for (const one of this.series) if (this.smoothing && one.smooth !== one.ys) parts.push(svg("path", { class: `line c${one.colour % 8} faint${this.series.length > 3 ? " many" : ""}`, d: this.path(one.xs, one.ys) }));
    for (const one of this.series) parts.push(...this.curve(one));
    this.mark = svg("g", { class: "mark" });
    this.svg.replaceChildren(...parts, this.mark);
    this.setCursor(this.cursor);
  }

  curve({ xs, ys, smooth, colour, isDashed }) {
    const look = `line c${colour % 8}${isDashed ? " dashed" : ""}`;
    const parts = [svg("path", { class: look, d: this.path(xs, smooth) })];
    if (xs.length <= DOTTED) {
      xs.forEach((x, place) => this.isShown(smooth[place]) && parts.push(svg("circle", { class: `point c${colour % 8}`, r: 2.2, cx: this.toX(x), cy: this.toY(smooth[place]) })));
    }
    const bad = xs.filter((_, place) => !Number.isFinite(ys[place]));
    for (const x of bad.slice(-DOTTED)) parts.push(svg("text", { class: "tick middle bad", x: this.toX(x), y: MARGIN.top + 4 }, svg("title", {}, "not a finite number"), "×"));
    return parts;
  }

  isShown(value) {
    return Number.isFinite(value) && (!this.isLog || value > 0);
  }

  /** A path of at most four points for each pixel: the first, the lowest, the highest and the last. */
  path(xs, ys) {
    const words = [];
    let isBroken = true;
    const put = (x, y) => {
      words.push(`${isBroken ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`);
      isBroken = false;
    };
    for (let place = 0; place < xs.length; ) {
      if (!this.isShown(ys[place])) {
        isBroken = true;
        place += 1;
        continue;
      }
      const column = Math.round(this.toX(xs[place]));
      let [end, low, high] = [place, place, place];
      while (end + 1 < xs.length && Math.round(this.toX(xs[end + 1])) === column && this.isShown(ys[end + 1])) {
        end += 1;
        if (ys[end] < ys[low]) low = end;
        if (ys[end] > ys[high]) high = end;
      }
      for (const one of [...new Set([place, Math.min(low, high), Math.max(low, high), end])]) put(this.toX(xs[one]), this.toY(ys[one]));
      place = end + 1;
    }
    return words.join("");
  }

  // -- Reading values ----------------------------------------------------------------------------

  point(clientX) {
    if (!this.toX) return;
    const wanted = this.toX.inverse(clientX - this.svg.getBoundingClientRect().left);
    let best = null;
    for (const { xs } of this.series) {
      const near = xs[nearest(xs, wanted)];
      if (best === null || Math.abs(near - wanted) < Math.abs(best - wanted)) best = near;
    }
    this.setCursor(best);
  }

  key(event) {
    if (!this.mark) return;
    const all = [...new Set(this.series.flatMap((one) => one.xs))].sort((a, b) => a - b);
    const here = this.cursor === null ? all.length - 1 : nearest(all, this.cursor);
    const moves = { ArrowLeft: here - (this.cursor === null ? 0 : 1), ArrowRight: here + 1, Home: 0, End: all.length - 1, PageUp: here - Math.ceil(all.length / 10), PageDown: here + Math.ceil(all.length / 10) };
    if (event.key === "Escape") this.setCursor(null);
    else if (event.key in moves) this.setCursor(all[Math.min(Math.max(moves[event.key], 0), all.length - 1)]);
    else return;
    event.preventDefault();
  }

  setCursor(x) {
    this.cursor = x;
    if (!this.mark) return;
    const at = x ?? Math.max(...this.series.map((one) => one.xs.at(-1)));
    const parts = [];
    const words = [element("b", {}, this.x === "time" ? `after ${duration(at)}` : `step ${short(at)}`)];
    if (x !== null) parts.push(svg("line", { class: "cursor", x1: this.toX(x), x2: this.toX(x), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    for (const one of this.series) {
      const place = nearest(one.xs, at);
      const [raw, smooth] = [one.ys[place], one.smooth[place]];
      if (x !== null && this.isShown(smooth)) parts.push(svg("circle", { class: `point c${one.colour % 8}`, r: 4, cx: this.toX(one.xs[place]), cy: this.toY(smooth) }));
      const where = one.xs[place] === at ? "" : ` (at ${this.x === "time" ? duration(one.xs[place]) : short(one.xs[place])})`;
      const also = smooth === raw || !this.smoothing ? "" : `, smoothed ${this.format(smooth)}`;
      words.push(element("span", { class: "value" }, element("i", { class: `key c${one.colour % 8}${one.isDashed ? " dashed" : ""}` }), `${one.name} ${this.format(raw)}${also}${where}`));
    }
    this.mark.replaceChildren(...parts);
    this.readout.replaceChildren(...words);
  }

  sentence() {
    const said = this.series.map(({ name, xs, ys }) => {
      const finite = ys.filter(Number.isFinite);
      return `${name}: ${xs.length} points, last ${this.format(ys.at(-1))}, lowest ${this.format(least(finite))}, highest ${this.format(most(finite))}`;
    });
    return `${this.title}. ${said.join("; ")}. Arrow keys read the values.`;
  }

  drawTable() {
    if (!this.details.open) return;
    const rows = [];
    for (const { name, xs, ys } of this.series) {
      const every = Math.ceil(xs.length / ROWS);
      xs.forEach((x, place) => (place % every && place !== xs.length - 1) || rows.push([name, x, ys[place]]));
    }
    const head = element("tr", {}, ["curve", this.x === "time" ? "seconds" : "step", "value"].map((text) => element("th", { scope: "col" }, text)));
    const body = rows.map(([name, x, y]) => element("tr", {}, element("td", {}, name), element("td", { class: "number" }, short(x)), element("td", { class: "number", "data-value": String(y) }, this.format(y))));
    this.table.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, body)));
  }
}

// -- Numbers ---------------------------------------------------------------------------------------

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** An exponential average without the bias of its beginning; `strength` from 0 to 1. Values that are not finite stay. */
export function smoothed(values, strength) {
  if (!strength) return values;
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = strength * sum + (1 - strength) * value;
    weight = strength * weight + (1 - strength);
    return sum / weight;
  });
}

export function nearest(sorted, wanted) {
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - sorted[low - 1] < sorted[low] - wanted ? low - 1 : low;
}

export function scale(domain, [start, end], isLog) {
  const f = isLog ? Math.log10 : (value) => value;
  const [a, b] = domain.map(f);
  const step = b === a ? 0 : (end - start) / (b - a);
  const place = (value) => (step ? start + (f(value) - a) * step : (start + end) / 2);
  place.domain = domain;
  place.inverse = (at) => (step ? (isLog ? 10 ** (a + (at - start) / step) : a + (at - start) / step) : domain[0]);
  return place;
}

export function padded(low, high, isLog) {
  if (low > high) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) return low === high ? [low / 2, low * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  const room = low === high ? Math.abs(low) / 2 || 1 : (high - low) * 0.06;
  return [low >= 0 ? Math.max(low - room, 0) : low - room, high + room];
}

export function ticks(low, high, isLog, count = 5) {
  if (isLog) {
    const decades = Math.log10(high / low);
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += Math.max(1, Math.ceil(decades / 6))) {
      for (const factor of decades > 2 ? [1] : decades > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]) found.push(factor * 10 ** power);
    }
    return found.filter((value) => value >= low && value <= high);
  }
  if (low === high) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let place = Math.ceil(low / step); place * step <= high * (1 + 1e-12); place += 1) found.push(Number((place * step).toPrecision(12)));
  return found;
}
