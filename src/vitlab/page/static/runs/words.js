/** Numbers, times and shares as people read them. Every text from a file goes into text nodes, never into markup. */

export function short(value) {
  if (value === null || value === undefined || value === "") return "";
  const number = Number(value);
  if (!Number.isFinite(number)) return String(value);
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size < 1e-3 || size >= 1e7) return number.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
  if (Number.isInteger(number)) return number.toLocaleString("en");
  return String(Number(number.toPrecision(4)));
}

export const percent = (share) => (share === null || share === undefined ? "" : `${(100 * share).toFixed(1)} %`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${(hours / 24).toFixed(1)} days`;
}

export function date(seconds) {
  if (!(seconds > 0)) return "";
  const at = new Date(1000 * seconds);
  const pad = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}`;
}

export function ago(seconds) {
  if (!(seconds > 0)) return "";
  const past = Date.now() / 1000 - seconds;
  return past < 3 ? "just now" : `${duration(past)} ago`;
}

/** The number by which validations are compared, with its name. */
export const measureName = (name) => ({ top1: "accuracy", map: "mean average precision" })[name] ?? "accuracy";

/** A setting of a run as text. */
export function setting(value) {
  if (value === null || value === undefined) return "not set";
  if (Array.isArray(value)) return value.map(setting).join(", ");
  if (typeof value === "number") return short(value);
  return value === "" ? "empty" : String(value);
}

/** Settings of the recipe are known by their names alone. */
export const settingName = (name) => name.replace(/^recipe\./, "");
