/** The curves of a run, built from its events as they come. */

const CURVES = { loss: "loss", rate: "rate", gradient: "gradient_norm" };

/** A value by step, with the time of each. A step that was repeated after a crash counts once. */
class Points {
  constructor() {
    Object.assign(this, { steps: [], times: [], values: [] });
  }

  add(step, time, value) {
    while (this.steps.length && this.steps.at(-1) >= step) for (const list of [this.steps, this.times, this.values]) list.pop();
    this.steps.push(step);
    this.times.push(time);
    this.values.push(value);
  }
}

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.points = Object.fromEntries(["loss", "rate", "gradient", "validationLoss", "accuracy"].map((name) => [name, new Points()]));
    this.measure = "top1";
    this.log = [];
    this.began = null;
  }

  add(events) {
    for (const event of events) {
      const time = Number(event.time);
      this.began ??= time;
      const put = (name, value) => this.points[name].add(event.step, time - this.began, Number(value));
      if (event.event === "step") {
        for (const [name, field] of Object.entries(CURVES)) if (field in event) put(name, event[field]);
      } else if (event.event === "validation") {
        this.measure = "map" in event ? "map" : "top1";
        if (this.measure in event) put("accuracy", 100 * Number(event[this.measure]));
        if ("loss" in event) put("validationLoss", event.loss);
      }
      if (event.event !== "step" && event.event !== "saved") this.log.push(event);
    }
  }

  /** What a chart draws: x is the step or the time in seconds. */
  series(name, x, look) {
    const { steps, times, values } = this.points[name];
    return { ...look, xs: x === "time" ? times : steps, ys: values };
  }
}
