/** The four charts of one or several runs, and what all of them share: x axis and smoothing. */

import { choice, element } from "../dom.js";
import { Chart } from "./chart.js";
import { History } from "./curves.js";
import { measureName, short } from "./words.js";

const share = (value) => `${short(value)} %`;

export class CurvePanel {
  /** Runs are {id, name}; with several, each has a colour of its own. */
  constructor(runs) {
    this.runs = runs;
    this.histories = new Map(runs.map((run) => [run.id, new History()]));
    Object.assign(this, { x: "step", smoothing: 0, isDrawn: false });
    this.charts = {
      loss: new Chart("Loss", { caption: "Of each training batch, with all that the recipe adds to it; dashed: of the validation images." }),
      accuracy: new Chart("Validation accuracy", { format: share }),
      rate: new Chart("Learning rate"),
      gradient: new Chart("Gradient norm", { caption: "Before clipping.", isLog: true }),
    };
    const axes = element("div", { class: "choice", role: "group", "aria-label": "Horizontal axis" });
    const press = choice(axes, [{ value: "step", label: "by step" }, { value: "time", label: "by time" }], (x) => {
      this.x = x;
      press(x);
      this.draw();
    });
    press("step");
    const strength = element("output", {}, "off");
    const slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "aria-label": "Smoothing" });
    slider.addEventListener("input", () => {
      this.smoothing = Number(slider.value);
      strength.textContent = this.smoothing ? this.smoothing.toFixed(2) : "off";
      this.request();
    });
    const tools = element("div", { class: "row tools" }, axes, element("label", { class: "row" }, "Smoothing ", slider, strength));
    this.waiting = element("p", { class: "nothing panel" }, "No step has been recorded yet.");
    this.root = element("div", {}, tools, this.waiting, element("div", { class: "curves-grid" }, Object.values(this.charts).map((chart) => chart.root)));
  }

  add(id, events) {
    this.histories.get(id).add(events);
    this.request();
  }

  clear(id) {
    this.histories.get(id).clear();
    this.request();
  }

  /** Draw once per frame, however many events come. */
  request() {
    if (this.isRequested) return;
    this.isRequested = true;
    requestAnimationFrame(() => {
      this.isRequested = false;
      this.draw();
    });
  }

  draw() {
    const how = { x: this.x, smoothing: this.smoothing };
    const isSingle = this.runs.length === 1;
    const of = (curve, what, look = {}) =>
      this.runs.map((run, place) => this.histories.get(run.id).series(curve, this.x, { name: isSingle ? what : `${run.name}${look.isDashed ? `, ${what}` : ""}`, colour: isSingle ? (look.colour ?? 0) : place, ...look, ...(isSingle ? {} : { colour: place }) }));
    this.charts.loss.show([...of("loss", "training"), ...of("validationLoss", "validation", { isDashed: true, colour: 1, isSparse: true })], how);
    const measures = new Set([...this.histories.values()].map((one) => one.measure));
    const measure = measures.size === 1 ? measureName([...measures][0]) : "accuracy";
    this.charts.accuracy.show(of("accuracy", measure, { isSparse: true, colour: 1 }), how);
    this.charts.rate.show(of("rate", "rate", { isSparse: true }), how);
    this.charts.gradient.show(of("gradient", "norm"), how);
    this.waiting.hidden = Object.values(this.charts).some((chart) => !chart.root.hidden);
  }
}
