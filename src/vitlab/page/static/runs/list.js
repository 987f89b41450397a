/** The list of runs: search, filter, order, pages; runs are chosen here to be compared. */

import { element } from "../dom.js";
import { get, repeat } from "./api.js";
import { chosen, toggleChosen } from "./chosen.js";
import { badge, bar, link, nothing, table } from "./tables.js";
import { ago, duration, measureName, percent, short } from "./words.js";

const EVERY = 4000; // milliseconds
const STATES = ["running", "finished", "stopped", "failed", "unreadable"];
const ORDERS = { changed: "last change", name: "name", best: "best validation", loss: "lowest loss" };

export function openList(holder, query, signal) {
  const asked = { words: "", state: "", order: "changed", page: "0", ...Object.fromEntries(new URLSearchParams(query)) };
  const rows = element("div");
  const count = element("p", { class: "hint", role: "status" });
  const pager = element("div", { class: "row pager" });
  const compare = element("a", { class: "button", href: "#/compare" });

  let latest = 0;

  async function refresh() {
    const number = ++latest;
    const found = await get(`api/runs?${new URLSearchParams(asked)}`, signal);
    if (number !== latest) return; // something else was asked for meanwhile
    document.getElementById("folder").textContent = `in the folder ${found.folder}`;
    const limit = found.is_cut ? "; the folder is too large to be searched whole" : "";
    count.textContent = `${found.found === found.total ? "" : `${short(found.found)} of `}${short(found.total)} ${found.total === 1 ? "run" : "runs"}${limit}`;
    asked.page = String(found.page);
    rows.replaceChildren(found.runs.length ? runTable(found.runs, showChosen) : nothing(found.total ? "No run matches." : "There are no runs in this folder yet. Start one with vitlab pretrain or vitlab finetune."));
    drawPager(found.page, found.pages);
  }

  function ask(changes) {
    Object.assign(asked, { page: "0" }, changes);
    const kept = Object.entries(asked).filter(([name, value]) => value && !(name === "page" && value === "0") && !(name === "order" && value === "changed"));
    history.replaceState(null, "", kept.length ? `#/?${new URLSearchParams(kept)}` : "#/");
    refresh().catch(() => {});
  }

  function drawPager(page, pages) {
    const turn = (to, text) => element("button", { type: "button", disabled: to < 0 || to >= pages, onclick: () => ask({ page: String(to) }) }, text);
    pager.replaceChildren(...(pages > 1 ? [turn(page - 1, "Newer"), element("span", {}, `page ${page + 1} of ${pages}`), turn(page + 1, "Older")] : []));
  }

  function showChosen() {
    compare.hidden = chosen.size < 2;
    compare.textContent = `Compare ${chosen.size} runs`;
  }

  let typing = 0;
  const words = element("input", { type: "search", value: asked.words, placeholder: "name, model, data, recipe", "aria-label": "Search runs" });
  words.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => ask({ words: words.value }), 250);
  });
  const states = select("State", ["", ...STATES], (state) => state || "any", asked.state, (state) => ask({ state }));
  const orders = select("Order by", Object.keys(ORDERS), (order) => ORDERS[order], asked.order, (order) => ask({ order }));
  const tools = element("div", { class: "row tools" }, words, states, orders, compare, count);
  holder.replaceChildren(tools, rows, pager);
  showChosen();
  repeat(EVERY, signal, refresh);
}

function select(label, values, name, value, onChange) {
  const made = element("select", { onchange: () => onChange(made.value) }, values.map((one) => element("option", { value: one, selected: one === value }, name(one))));
  return element("label", {}, `${label} `, made);
}

export function runTable(runs, onChoose) {
  const choose = (run) => element("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: chosen.has(run.id), onchange: () => (toggleChosen(run.id), onChoose?.()) });
  const columns = [
    { title: "", cell: choose },
    { title: "run", isMain: true, cell: (run) => [link(`#/run/${run.id}`, run.name), element("span", { class: "hint" }, about(run))] },
    { title: "state", cell: (run) => badge(run.state, run.why) },
    { title: "step", isNumber: true, cell: (run) => (run.total === undefined ? "" : [run.step < run.total ? bar(run.step, run.total) : null, `${short(run.step)} of ${short(run.total)}`]) },
    { title: "loss", isNumber: true, cell: (run) => short(run.loss) },
    { title: "best validation", isNumber: true, cell: (run) => bestOf(run) },
    { title: "time", isNumber: true, cell: (run) => timeOf(run) },
    { title: "changed", isNumber: true, cell: (run) => ago(run.changed) },
  ];
  return table(columns, runs);
}

export const about = (run) => (run.model ? [run.model, run.data, run.objective === "classes" ? run.recipe : run.objective].join(" · ") : run.why);

export const bestOf = (run) => (run.best === null || run.best === undefined ? "" : element("span", { title: `${measureName(run.measure)} at step ${run.best_step}` }, percent(run.best)));

const timeOf = (run) => (run.state === "running" && run.seconds_left !== null ? `${duration(run.seconds)}, ${duration(run.seconds_left)} left` : duration(run.seconds));
