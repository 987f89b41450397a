/** Studies: how far each is, the verdicts on its claims so far, and its cells beside the numbers of the paper. */

import { element } from "../dom.js";
import { get, repeat } from "./api.js";
import { badge, bar, facts, nothing, table } from "./tables.js";
import { short } from "./words.js";

const EVERY = 5000; // milliseconds
const LOOKS = { confirmed: "finished", "not confirmed": "failed" };

export function openStudies(holder, signal) {
  let before = "";
  repeat(EVERY, signal, async () => {
    const { studies } = await get("api/studies", signal);
    const now = JSON.stringify(studies);
    if (now === before) return;
    before = now;
    holder.replaceChildren(...(studies.length ? studies.map(drawStudy) : [nothing("There are no studies in this folder. Start one with vitlab study.")]));
  });
}

function drawStudy(study) {
  const parts = [element("div", { class: "row apart" }, element("h2", {}, study.name), badge(study.state, study.why))];
  if (study.state === "unreadable") return element("section", { class: "panel study" }, ...parts, element("p", { class: "why" }, study.why));
  const said = [
    ["remakes", study.remakes],
    ["scale", study.scale],
    ["finished", study.trainings && progress(study.trainings.finished, study.trainings.total, "trainings")],
    ["measured", progress(study.measured, study.total, "runs")],
  ];
  parts.push(facts(said), ...study.remarks.map((remark) => element("p", { class: "why" }, remark)));
  if (study.claims.length) parts.push(table(CLAIMS, study.claims, { caption: study.state === "finished" ? "Claims" : "Claims, by the runs so far" }));
  const isCut = study.cells.length < study.cell_count;
  const caption = isCut ? `The first ${short(study.cells.length)} of ${short(study.cell_count)} cells, means over seeds` : "Cells, means over seeds";
  parts.push(table(cellColumns(study), study.cells, { caption }));
  return element("section", { class: "panel study" }, ...parts);
}

/** A study that was begun by an older version does not say how many there will be. */
function progress(done, total, what) {
  return total === null ? `${short(done)} ${what}` : [bar(done, total, what), `${short(done)} of ${short(total)} ${what}`];
}

const CLAIMS = [
  { title: "claim", isMain: true, cell: (claim) => [claim.name, element("span", { class: "hint" }, claim.source ? `${claim.says} (${claim.source})` : claim.says)] },
  { title: "verdict", cell: verdict },
  { title: "95 % interval", isNumber: true, cell: (claim) => element("div", {}, claim.comparisons.map((one) => element("div", { title: one.says }, interval(one)))) },
  { title: "seeds", isNumber: true, cell: (claim) => seeds(claim) },
];

function verdict(claim) {
  const words = claim.answer === "not run yet" ? "not enough seeds yet" : claim.answer;
  const needed = claim.comparisons.filter((one) => one.answer === "undecided").map((one) => one.needed ?? Infinity);
  const more = claim.answer === "undecided" ? element("span", { class: "hint" }, `${Math.max(...needed) < Infinity ? `about ${short(Math.max(...needed))}` : "more than 1,000"} seeds would decide it`) : null;
  return [element("span", { class: `badge ${LOOKS[claim.answer] ?? ""}` }, words), more];
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

const interval = ({ mean, low, high }) => (mean === undefined ? "–" : `${signed(mean)} [${signed(low)}, ${signed(high)}]`);

function seeds({ comparisons, fewest }) {
  const least = Math.min(...comparisons.map((one) => one.seeds));
  return comparisons.length ? (least < fewest ? `${least} of ${fewest}` : short(least)) : "";
}

function cellColumns({ factors, cells, seeds: asked }) {
  const measures = [...new Set(cells.map((cell) => cell.measure).filter(Boolean))];
  const columns = factors.map((factor, place) => ({ title: factor, isMain: place === 0, cell: (cell) => cell.levels[factor] ?? "" }));
  if (measures.length > 1) columns.push({ title: "measure", cell: (cell) => cell.measure });
  columns.push({ title: measures.length === 1 ? measures[0] : "value", isNumber: true, cell: value });
  columns.push({ title: "seeds", isNumber: true, cell: (cell) => (asked.length ? `${cell.seeds} of ${asked.length}` : "") });
  if (cells.some((cell) => cell.published !== null)) columns.push({ title: "the paper", isNumber: true, cell: (cell) => short(cell.published) });
  return columns;
}

function value({ mean, std, empty }) {
  if (mean === null) return element("span", { class: "hint" }, empty ? "diverged" : "pending");
  const spread = std === null ? "" : ` ± ${short(std.toPrecision(2))}`;
  return [`${short(mean)}${spread}`, empty ? element("span", { class: "hint" }, `${empty} diverged`) : null];
}
