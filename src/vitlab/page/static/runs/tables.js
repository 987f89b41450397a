/** Tables whose rows become cards on a narrow screen, badges of states, galleries of mistakes. */

import { element } from "../dom.js";
import { getPicture, pictureAddress } from "./api.js";
import { percent } from "./words.js";

/** Columns are {title, cell, isNumber, isShort, isMain}: `cell` gives the text or the elements of a row. */
export function table(columns, rows, { caption = "" } = {}) {
  const head = element("tr", {}, columns.map((one) => element("th", { scope: "col", class: one.isNumber && "number" }, one.title)));
  const body = rows.map((row) => element("tr", {}, columns.map((one) => cellOf(one, row))));
  const made = element("table", {}, caption ? element("caption", {}, caption) : null, element("thead", {}, head), element("tbody", {}, body));
  return element("div", { class: "scroll cards" }, made);
}

function cellOf(column, row) {
  const content = column.cell(row);
  const is = [column.isNumber && "number", column.isShort && "short", column.isMain && "main", (content === "" || content === null) && "empty"].filter(Boolean);
  return element("td", { class: is.join(" ") || false, "data-label": column.title }, content);
}

export const badge = (state, why = "") => element("span", { class: `badge ${state}`, title: why || false }, state);

export function bar(step, total, what = "steps") {
  const share = total ? Math.min(step / total, 1) : 0;
  const made = element("progress", { max: 1, value: share, "aria-label": `${percent(share)} of the ${what}` });
  return made;
}

export const link = (address, ...content) => element("a", { href: address }, ...content);

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return element("dl", { class: "facts" }, shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** The worst mistakes as pictures, which are fetched when they come into view; one that cannot be shown says why. */
export function gallery(id, mistakes, signal) {
  const cards = mistakes.map((one) => mistakeCard(one));
  const places = new Map(cards.map((card, place) => [card, mistakes[place].picture]));
  const watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      queue = queue.then(() => load(target.firstChild, pictureAddress(id, places.get(target)), signal));
    }
  }, { rootMargin: "300px" });
  cards.forEach((card) => watcher.observe(card));
  signal.addEventListener("abort", () => watcher.disconnect());
  return element("div", { class: "gallery" }, cards);
}

let queue = Promise.resolve(); // one picture at a time: the first of a data set may take long, and other requests go first

async function load(place, address, signal) {
  if (signal.aborted) return;
  try {
    const url = URL.createObjectURL(await getPicture(address, signal));
    const image = element("img", { alt: place.title, src: url, onload: () => URL.revokeObjectURL(url) });
    place.replaceWith(image);
  } catch (error) {
    place.textContent = error.message;
  }
}

function mistakeCard({ id: sample, label, answer, probability, loss }) {
  const image = element("p", { class: "no-picture", title: `sample ${sample}` });
  const words = element("figcaption", {}, element("b", {}, label), " taken for ", element("b", { class: "wrong" }, answer), ` (${percent(probability)})`, element("span", { class: "hint", title: sample }, `${sample} · loss ${loss.toFixed(2)}`));
  return element("figure", { class: "mistake" }, image, words);
}

export const nothing = (...words) => element("p", { class: "nothing panel" }, ...words);

export function section(title, ...content) {
  return element("section", { class: "panel" }, element("h2", {}, title), ...content);
}
