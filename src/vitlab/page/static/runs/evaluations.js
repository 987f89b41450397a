/** Tables of `vitlab evaluate`, and one of them with its classes, confusions and worst mistakes. */

import { element } from "../dom.js";
import { get } from "./api.js";
import { confusedTable } from "./run.js";
import { gallery, link, nothing, section, table } from "./tables.js";
import { date, percent, short } from "./words.js";

export async function openEvaluations(holder, signal) {
  const { evaluations } = await get("api/evaluations", signal);
  const shown = evaluations.map((one) => section(one.name, element("p", { class: "hint" }, date(one.changed)), rowTable(one.rows), element("p", {}, link(`#/evaluation/${one.id}`, "Classes and worst mistakes"))));
  holder.replaceChildren(...(shown.length ? shown : [nothing("There are no evaluations in this folder. Make one with vitlab evaluate and a folder below this one.")]));
}

export async function openEvaluation(holder, id, signal) {
  const found = await get(`api/evaluations/${id}`, signal);
  const parts = [element("p", {}, link("#/evaluations", "← All evaluations")), section(found.name, rowTable(found.rows))];
  for (const row of found.rows) {
    const inner = [];
    if (row.mistakes.length) inner.push(element("h3", {}, "Worst mistakes"), gallery(id, row.mistakes, signal));
    if (row.confused.length) inner.push(element("details", {}, element("summary", {}, "Confused most often"), confusedTable(row.confused.map((one) => ({ label: one.name, answer: one["predicted name"], count: one.count })))));
    if (row.classes.length) inner.push(element("details", {}, element("summary", {}, `Classes, the worst first (${row.classes.length} of ${row.class_count})`), classTable(row.classes)));
    parts.push(section(`${row.model} on ${row.data}`, ...inner));
  }
  holder.replaceChildren(...parts);
}

function rowTable(rows) {
  const has = (name) => rows.some((row) => name in row.numbers);
  const number = (title, name, write) => (has(name) ? [{ title, isNumber: true, cell: (row) => (name in row.numbers ? write(row.numbers[name]) : "") }] : []);
  const columns = [
    { title: "model", isMain: true, cell: (row) => [row.model, element("span", { class: "hint" }, row.architecture)] },
    { title: "data", cell: (row) => row.data },
    { title: "labels", cell: (row) => row.labels },
    ...number("top-1", "top1", percent),
    ...number("top-5", "top5", percent),
    ...number("mAP", "map", percent),
    ...number("loss", "loss", short),
    ...number("ECE", "ece", percent),
    ...number("images", "count", short),
    { title: "unreadable", isNumber: true, cell: (row) => short(row.bad) },
  ];
  return table(columns, rows);
}

function classTable(classes) {
  const names = Object.keys(classes[0]).filter((name) => name !== "class");
  return table(names.map((name) => ({ title: name, isNumber: name !== "name", cell: (row) => (name === "name" ? row[name] : short(row[name])) })), classes);
}
