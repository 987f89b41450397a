/** The runs that were chosen to be compared. They are kept while the page is open. */

export const chosen = new Set();
const MOST = 8;

export function toggleChosen(id) {
  if (!chosen.delete(id)) chosen.add(id);
  if (chosen.size > MOST) chosen.delete(chosen.values().next().value);
  showCount();
}

export function setChosen(ids) {
  chosen.clear();
  for (const id of ids.slice(0, MOST)) chosen.add(id);
  showCount();
}

function showCount() {
  document.getElementById("chosen-count").textContent = chosen.size ? ` (${chosen.size})` : "";
}
