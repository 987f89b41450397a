/** The ledger: every measured number beside the expected and the published ones. */

import { element } from "../dom.js";
import { get } from "./api.js";
import { nothing, section, table } from "./tables.js";
import { short } from "./words.js";

export async function openLedger(holder, signal) {
  const { ledgers } = await get("api/ledger", signal);
  if (!ledgers.length) {
    holder.replaceChildren(nothing("There is no ledger.jsonl in this folder. Commands append to one with --ledger."));
    return;
  }
  const words = element("input", { type: "search", placeholder: "model, data, metric", "aria-label": "Search the ledger" });
  const tables = element("div", { class: "stack" });
  const draw = () => tables.replaceChildren(...ledgers.map((one) => drawLedger(one, words.value.toLowerCase().split(/\s+/).filter(Boolean))));
  words.addEventListener("input", draw);
  holder.replaceChildren(element("div", { class: "row tools" }, words), tables);
  draw();
}

function written(cell, title) {
  if (typeof cell === "number") return short(cell);
  return title === "when" ? String(cell ?? "").replace("T", " ").slice(0, 16) : (cell ?? "");
}

function drawLedger({ name, columns, rows, total, remarks }, words) {
  const kept = rows.filter((row) => words.every((word) => row.some((cell) => String(cell ?? "").toLowerCase().includes(word)))).reverse();
  const filled = columns.map((_, place) => rows.some((row) => row[place] !== null && row[place] !== ""));
  const shown = columns.flatMap((title, place) =>
    filled[place] ? [{ title, isMain: place === 0, isNumber: rows.some((row) => typeof row[place] === "number"), isShort: title === "when", cell: (row) => written(row[place], title) }] : [],
  );
  const title = name === "." ? "The ledger" : name;
  const notes = remarks.map((remark) => element("p", { class: "why" }, remark));
  const count = element("p", { class: "hint" }, `${short(kept.length)} of ${short(total)} measurements, the newest first.`);
  return section(title, count, ...notes, table(shown, kept));
}
