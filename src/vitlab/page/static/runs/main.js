/** The views of the run browser, by the part of the address after #. */

import { showError } from "./api.js";
import { openCompare } from "./compare.js";
import { openEvaluation, openEvaluations } from "./evaluations.js";
import { openLedger } from "./ledger.js";
import { openList } from "./list.js";
import { openRun } from "./run.js";
import { openStudies } from "./studies.js";
import { openSweeps } from "./sweeps.js";
import { nothing } from "./tables.js";

const view = document.getElementById("view");
let running = new AbortController();

async function show() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "", argument = ""] = path.split("/");
  const id = /^[0-9a-f]{1,64}$/.test(argument) ? argument : "";
  const holder = document.createElement("div");
  holder.className = "stack";
  view.replaceChildren(holder);
  showError("");
  for (const link of document.querySelectorAll("nav a[data-view]")) {
    const isHere = link.dataset.view === ({ "": "runs", run: "runs", evaluation: "evaluations" }[name] ?? name);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (name === "") openList(holder, query, signal);
    else if (name === "run" && id) openRun(holder, id, signal);
    else if (name === "compare") await openCompare(holder, argument.split(",").filter((one) => /^[0-9a-f]{1,64}$/.test(one)), signal);
    else if (name === "sweeps") openSweeps(holder, signal);
    else if (name === "studies") openStudies(holder, signal);
    else if (name === "evaluations") await openEvaluations(holder, signal);
    else if (name === "evaluation" && id) await openEvaluation(holder, id, signal);
    else if (name === "ledger") await openLedger(holder, signal);
    else holder.replaceChildren(nothing("There is no such view."));
  } catch (error) {
    if (!signal.aborted) showError(error.message);
  }
}

/** Without a model there is nothing to look inside of. */
async function hideModels() {
  const answer = await fetch("api/models").catch(() => null);
  const { models } = answer?.ok ? await answer.json() : { models: null };
  document.querySelector("nav .elsewhere").hidden = models?.length === 0;
}

addEventListener("hashchange", show);
show();
hideModels();
