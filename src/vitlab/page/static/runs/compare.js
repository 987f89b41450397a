/** Several runs over each other: their curves, their results, and the settings in which they differ. */

import { element } from "../dom.js";
import { Follower, get, repeat } from "./api.js";
import { chosen, setChosen } from "./chosen.js";
import { bestOf } from "./list.js";
import { CurvePanel } from "./panel.js";
import { badge, link, nothing, section, table } from "./tables.js";
import { duration, setting, settingName, short } from "./words.js";

const EVERY = 3000; // milliseconds

export async function openCompare(holder, ids, signal) {
  if (ids.length) setChosen(ids);
  else if (chosen.size) history.replaceState(null, "", `#/compare/${[...chosen].join(",")}`);
  const wanted = [...chosen];
  if (wanted.length < 2) {
    holder.replaceChildren(nothing("Choose two or more runs in the ", link("#/", "list of runs"), "."));
    return;
  }
  const address = `api/compare?ids=${wanted.map(encodeURIComponent).join(",")}`;
  const found = await get(address, signal);
  const panel = new CurvePanel(found.runs);
  const results = element("div");
  holder.replaceChildren(section("Runs", results), panel.root, differing(found));
  drawResults(results, found.runs);
  const followers = found.runs.map(({ id }) => new Follower(id, { onReset: () => panel.clear(id), onEvents: (events) => panel.add(id, events) }));
  repeat(EVERY, signal, async () => {
    const abouts = await Promise.all(followers.map((one) => one.poll(signal)));
    drawResults(results, abouts);
    if (!abouts.some((run) => run.state === "running")) return "stop";
  });
}

function drawResults(holder, runs) {
  const columns = [
    { title: "run", isMain: true, cell: (run) => [element("i", { class: `key c${runs.indexOf(run) % 8}` }), link(`#/run/${run.id}`, run.name)] },
    { title: "state", cell: (run) => badge(run.state, run.why) },
    { title: "step", isNumber: true, cell: (run) => `${short(run.step)} of ${short(run.total)}` },
    { title: "loss", isNumber: true, cell: (run) => short(run.loss) },
    { title: "best validation", isNumber: true, cell: bestOf },
    { title: "time", isNumber: true, cell: (run) => duration(run.seconds) },
  ];
  holder.replaceChildren(table(columns, runs));
}

function differing({ runs, differences, same }) {
  const columns = [{ title: "setting", isMain: true, cell: (row) => settingName(row.setting) }];
  runs.forEach((run, place) => columns.push({ title: run.name, cell: (row) => setting(row.values[place]) }));
  const words = differences.length ? table(columns, differences) : element("p", {}, "They have the same settings.");
  return section("Settings that differ", words, element("p", { class: "hint" }, `${same} other settings are the same.`));
}
