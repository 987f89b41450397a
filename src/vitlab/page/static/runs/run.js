/** One run: its curves as they grow, its masked patches, results, mistakes, settings and log. */

import { element } from "../dom.js";
import { Follower, get, pictureAddress, repeat } from "./api.js";
import { chosen, toggleChosen } from "./chosen.js";
import { bestOf } from "./list.js";
import { CurvePanel } from "./panel.js";
import { badge, bar, facts, gallery, link, section, table } from "./tables.js";
import { date, duration, percent, setting, settingName, short } from "./words.js";

const EVERY = 1500; // milliseconds between two looks at a running run
const WATCH = 10_000; // between two looks at one that is not running: it may be continued

export function openRun(holder, id, signal) {
  const head = element("section", { class: "panel" });
  const live = element("p", { class: "hint", role: "status" });
  const panel = new CurvePanel([{ id, name: "" }]);
  const rest = element("div", { class: "stack" });
  const log = element("div", {});
  holder.replaceChildren(element("p", {}, link("#/", "← All runs")), head, live, panel.root, rest);
  const follower = new Follower(id, { onReset: () => panel.clear(id), onEvents: (events) => panel.add(id, events) });
  let [shown, isStarted] = ["", false];

  async function refresh() {
    const before = follower.after;
    const about = await follower.poll(signal);
    const isRunning = about.state === "running";
    drawHead(head, about);
    const damaged = follower.damaged ? ` ${follower.damaged} damaged ${follower.damaged === 1 ? "line" : "lines"} of its log could not be read.` : "";
    live.textContent = (isRunning ? "Running; the curves follow." : "") + damaged;
    if (shown !== `${about.state}${about.best_step}` || (!isStarted && follower.after)) {
      shown = `${about.state}${about.best_step}`;
      isStarted = true;
      drawRest(rest, await get(`api/runs/${id}`, signal), log, signal);
    }
    if (before !== follower.after) drawLog(log, panel.histories.get(id).log);
    return isRunning;
  }

  let isRunning = true;
  let quiet = 0;
  repeat(EVERY, signal, async () => {
    quiet += EVERY;
    if (!isRunning && quiet < WATCH) return;
    quiet = 0;
    isRunning = await refresh();
  });
}

function drawHead(holder, run) {
  const choose = element("label", { class: "check" }, element("input", { type: "checkbox", checked: chosen.has(run.id), onchange: () => toggleChosen(run.id) }), "Compare this run");
  const title = element("div", { class: "row apart" }, element("h2", { class: "run-name" }, run.name), element("div", { class: "row" }, choose, badge(run.state)));
  if (run.state === "unreadable") {
    holder.replaceChildren(title, element("p", { class: "why" }, run.why));
    return;
  }
  const words = [
    ["model", `${run.model}, ${short(run.parameters)} parameters, ${run.image.join("×")} pixels`],
    ["data", run.data],
    ["recipe", run.objective === "classes" ? run.recipe : `${run.recipe}, ${run.objective}`],
    ["step", element("span", { class: "row" }, bar(run.step, run.total), `${short(run.step)} of ${short(run.total)}`)],
    ["best validation", bestOf(run)],
    ["began", date(run.began)],
    ["time", run.state === "running" && run.seconds_left !== null ? `${duration(run.seconds)}, about ${duration(run.seconds_left)} left` : duration(run.seconds)],
    ["speed", run.speed ? `${short(Math.round(run.speed))} images/s` : ""],
  ];
  holder.replaceChildren(title, run.why ? element("p", { class: "why" }, run.why) : "", facts(words));
}

function drawRest(holder, run, log, signal) {
  const parts = [];
  if (run.sweep) parts.push(element("p", {}, link(`#/sweeps`, "This run is part of a sweep")));
  for (const why of run.not_exact ?? []) parts.push(element("p", { class: "why panel" }, `This run is not exact: ${why}`));
  for (const note of run.notes ?? []) parts.push(element("p", { class: "why panel" }, note));
  for (const picture of run.pictures) {
    const image = element("img", { class: "masked", alt: "Rows of the first images: as they are, with patches hidden, with what is predicted there", src: pictureAddress(run.id, picture.number, picture.version) });
    parts.push(section("Masked patches", element("p", { class: "caption" }, "From top to bottom: the images, what the model sees (hidden patches are grey), and what it predicts there. Drawn at the last validation."), image));
  }
  parts.push(...run.sets.map((set) => drawSet(run.id, set, signal)));
  parts.push(section("Log", log));
  const rows = run.settings.map(([name, value]) => ({ name: settingName(name), value: setting(value) }));
  const settings = table([{ title: "setting", cell: (row) => row.name }, { title: "value", cell: (row) => row.value }], rows);
  parts.push(element("details", { class: "panel" }, element("summary", {}, `All ${rows.length} settings`), settings));
  holder.replaceChildren(...parts);
}

function drawSet(id, set, signal) {
  const numbers = set.numbers;
  const said = [
    ["accuracy", "top1" in numbers ? percent(numbers.top1) : ""],
    ["mean average precision", "map" in numbers ? percent(numbers.map) : ""],
    ["loss", short(numbers.loss)],
    ["images", short(numbers.count)],
    ["not evaluated", numbers.not_evaluated ? short(numbers.not_evaluated) : ""],
  ];
  const parts = [facts(said)];
  if (set.mistakes.length) parts.push(element("h3", {}, "Worst mistakes"), gallery(id, set.mistakes, signal));
  if (set.confused.length) parts.push(element("details", {}, element("summary", {}, "Confused most often"), confusedTable(set.confused)));
  parts.push(element("details", {}, element("summary", {}, `Classes, the worst first (${set.classes.length} of ${set.class_count})`), classTable(set.classes)));
  return section(`${set.name} images`, ...parts);
}

export function confusedTable(rows) {
  return table([{ title: "class", cell: (row) => row.label }, { title: "taken for", cell: (row) => row.answer }, { title: "images", isNumber: true, cell: (row) => short(row.count) }], rows);
}

function classTable(classes) {
  const isMulti = classes.some((one) => one.right === null);
  const results = isMulti
    ? [{ title: "average precision", isNumber: true, cell: (row) => percent(row.average_precision) }, { title: "F1", isNumber: true, cell: (row) => percent(row.f1) }]
    : [{ title: "right", isNumber: true, cell: (row) => short(row.right) }, { title: "accuracy", isNumber: true, cell: (row) => percent(row.right / Math.max(row.images, 1)) }];
  return table([{ title: "class", cell: (row) => row.name }, { title: "images", isNumber: true, cell: (row) => short(row.images) }, ...results], classes);
}

function drawLog(holder, events) {
  const rows = events.slice(-100).reverse();
  const said = (event) =>
    Object.entries(event)
      .filter(([name, value]) => !["event", "time", "step"].includes(name) && value !== null && String(value) !== "")
      .map(([name, value]) => `${name} ${typeof value === "number" ? short(value) : Array.isArray(value) ? value.join("; ") : value}`)
      .join(", ");
  holder.replaceChildren(table([{ title: "time", isShort: true, cell: (event) => date(event.time) }, { title: "step", isNumber: true, cell: (event) => short(event.step) }, { title: "event", cell: (event) => event.event }, { title: "", isMain: true, cell: said }], rows));
}
