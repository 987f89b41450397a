/** Sweeps: the points that were tried, as a table and as a picture, the choice, and the last runs. */

import { choice, element } from "../dom.js";
import { get, repeat } from "./api.js";
import { parallelPlot, scatterPlot } from "./sweep_plots.js";
import { badge, facts, link, nothing, table } from "./tables.js";
import { measureName, percent, setting, settingName, short } from "./words.js";

const EVERY = 5000; // milliseconds

export function openSweeps(holder, signal) {
  let before = "";
  repeat(EVERY, signal, async () => {
    const { sweeps } = await get("api/sweeps", signal);
    const now = JSON.stringify(sweeps);
    if (now === before) return;
    before = now;
    holder.replaceChildren(...(sweeps.length ? sweeps.map(drawSweep) : [nothing("There are no sweeps in this folder. Start one with vitlab sweep.")]));
  });
}

function drawSweep(sweep) {
  const measure = measureName(sweep.points.find((point) => point.measured !== null)?.measure);
  const said = [
    ["data", sweep.data],
    ["tested on", sweep.test],
    ["recipe", sweep.recipe],
    ["judged on", sweep.judged_on],
    ["picked", sweep.pick ? `${sweep.pick}: ${sweep.why}` : ""],
    ...sweep.results.map((row) => ["result", resultOf(row)]),
  ];
  const parts = [element("div", { class: "row apart" }, element("h2", {}, sweep.name), badge(sweep.state)), facts(said)];
  const points = sweep.points.map((point, place) => ({ ...point, isPicked: point.name === sweep.pick, values: sweep.differences.map((one) => one.values[place]) }));
  const settings = sweep.differences.map((one) => settingName(one.setting));
  if (settings.length && points.some((point) => point.measured !== null)) parts.push(plots(settings, points, measure));
  const columns = [
    { title: "point", isMain: true, cell: (point) => [link(`#/run/${point.id}`, point.name), point.isPicked ? element("span", { class: "badge picked" }, "picked") : ""] },
    ...settings.map((name, place) => ({ title: name, isNumber: true, cell: (point) => setting(point.values[place]) })),
    { title: "state", cell: (point) => badge(point.state, point.why) },
    { title: measure, isNumber: true, cell: (point) => percent(point.measured) },
    { title: "loss", isNumber: true, cell: (point) => short(point.loss) },
  ];
  parts.push(table(columns, points, { caption: "Points, on the development images" }));
  if (sweep.seeds.length) {
    const last = [{ title: "run", isMain: true, cell: (run) => link(`#/run/${run.id}`, run.name) }, { title: "state", cell: (run) => badge(run.state, run.why) }, { title: `test ${measure}`, isNumber: true, cell: (run) => percent(run.measured) }, { title: "loss", isNumber: true, cell: (run) => short(run.loss) }];
    parts.push(table(last, sweep.seeds, { caption: "The picked point, trained on all images" }));
  }
  return element("section", { class: "panel sweep" }, ...parts);
}

function resultOf(row) {
  const metric = Object.keys(row).find((name) => name.endsWith("%"));
  const spread = row.std === null || row.std === undefined ? "" : ` ± ${short(row.std)}`;
  return metric ? `${metric.replace(" %", "")} ${short(row[metric])}${spread} % of ${short(row.count)} test images, ${row.runs} ${row.runs === 1 ? "run" : "runs"}` : "";
}

function plots(settings, points, measure) {
  const holder = element("div", { class: "scroll" });
  const kinds = element("div", { class: "choice", role: "group", "aria-label": "Picture" });
  const axis = element("select", { "aria-label": "Setting on the horizontal axis" }, settings.map((name, place) => element("option", { value: place }, name)));
  const draw = (kind) => {
    press(kind);
    axis.hidden = kind !== "scatter" || settings.length < 2;
    const place = Number(axis.value);
    drawn = kind;
    const width = Math.min(holder.clientWidth || 640, 860);
    holder.replaceChildren(kind === "scatter" ? scatterPlot(settings[place], points.map((point) => ({ ...point, value: point.values[place] })), measure, width) : parallelPlot(settings, points, measure, width));
  };
  axis.addEventListener("change", () => draw("scatter"));
  const press = choice(kinds, [{ value: "scatter", label: "Scatter" }, { value: "parallel", label: "Parallel axes" }], draw);
  let drawn = settings.length > 1 ? "parallel" : "scatter";
  let before = 0;
  new ResizeObserver(() => {
    if (holder.clientWidth !== before) draw(drawn);
    before = holder.clientWidth;
  }).observe(holder);
  return element("div", { class: "plots" }, element("div", { class: "row tools" }, kinds, axis), holder);
}
