/** Keeps the readings of the page up to date: one model or two, the original picture and the edited one.
 *
 * Whatever changes while the model computes, only what is wanted at the end is computed next.
 */
import { editedPixels, isEdited, keptPatches, noEdits, packed } from "./edits.js";
import { prepare } from "../pixels.js";
import { gridAt, Reading } from "./reading.js";

export class Tracing {
  #backend;
  #store;
  #readings = new Map();
  #prepared = new Map();
  #isRunning = false;
  #isFailed = false;

  constructor(backend, store) {
    this.#backend = backend;
    this.#store = store;
    store.on(["model", "other", "picture", "size", "edits"], () => this.refresh());
  }

  card(id) {
    return this.#backend.cards.find((card) => card.id === id) ?? null;
  }

  /** Compute what is missing, then report the readings. */
  async refresh() {
    this.#isFailed = false;
    if (this.#isRunning) return;
    this.#isRunning = true;
    try {
      for (let job = this.#next(); job; job = this.#next()) {
        this.#store.set({ status: { kind: "busy", text: "Computing…" } });
        await new Promise((done) => setTimeout(done)); // let the page paint first
        try {
          await this.#compute(job);
        } catch (error) {
          if (this.#isWanted(job)) throw error; // else something else was chosen meanwhile
        }
        this.#report();
      }
      this.#report();
      if (this.#store.state.picture) this.#store.set({ status: { kind: "ready", text: "" } });
    } catch (error) {
      this.#isFailed = true;
      this.#store.set({ status: { kind: "error", text: explained(error), retry: true } });
    } finally {
      this.#isRunning = false;
    }
  }

  async #compute({ key, card, picture, size, edits }) {
    const grid = gridAt(card, size);
    const pixels = editedPixels(this.#pixels(picture, card, size), size, grid, edits);
    const kept = keptPatches(edits);
    const trace = await this.#backend.trace(card.id, pixels, kept, size);
    this.#readings.set(key, new Reading(card, size, trace, kept, pixels));
  }

  /** The picture as the model takes it; the last few are kept, as edits use the same one again and again. */
  #pixels(picture, card, size) {
    const key = JSON.stringify([picture.id, card.preprocessing, size]);
    if (!this.#prepared.has(key)) {
      if (this.#prepared.size > 3) this.#prepared.delete(this.#prepared.keys().next().value);
      this.#prepared.set(key, prepare(picture.decoded, card, size));
    }
    return this.#prepared.get(key);
  }

  /** What the state asks for: up to four readings by name. */
  #wanted() {
    const { model, other, picture, size, edits } = this.#store.state;
    const found = {};
    if (!picture) return found;
    const add = (name, card, edits) => {
      const at = sizeFor(card, size);
      const key = JSON.stringify([picture.id, card.id, at, packed(edits.grey), packed(edits.drop), edits.shuffle]);
      found[name] = { key, card, picture, size: at, edits };
    };
    for (const [side, id] of [["first", model], ["second", other]]) {
      const card = id === null ? null : this.card(id);
      if (!card) continue;
      const at = sizeFor(card, size);
      const [rows, columns] = gridAt(card, at);
      const plain = noEdits(rows * columns);
      const fits = edits.drop.length === rows * columns; // another grid cannot take these edits
      add(`${side}Original`, card, plain);
      add(side, card, fits && isEdited(edits) ? edits : plain);
    }
    return found;
  }

  #isWanted({ key }) {
    return Object.values(this.#wanted()).some((one) => one.key === key);
  }

  #next() {
    const jobs = Object.values(this.#wanted());
    return this.#isFailed ? null : jobs.find(({ key }) => !this.#readings.has(key)) ?? null;
  }

  #report() {
    const wanted = this.#wanted();
    const keys = new Set(Object.values(wanted).map(({ key }) => key));
    const ready = (name) => (wanted[name] ? this.#readings.get(wanted[name].key) ?? null : null);
    const changes = {};
    for (const name of ["first", "firstOriginal", "second", "secondOriginal"]) {
      if (!wanted[name] || ready(name)) changes[name] = ready(name); // until it is ready, the old one stays
    }
    this.#store.set(changes);
    const shown = new Set(Object.values(this.#store.state).filter((value) => value instanceof Reading));
    for (const [key, reading] of this.#readings) if (!keys.has(key) && !shown.has(reading)) this.#readings.delete(key);
  }
}

/** The size itself if the model offers it, else the model's own. */
export function sizeFor(card, size) {
  return card.sizes.find(([height, width]) => size && height === size[0] && width === size[1]) ?? card.image;
}

/** An error as a sentence with what to do. */
function explained({ status, message }) {
  if (status === 503) return "The server is busy. Wait a moment, then try again.";
  if (status === 413) return "The server refused the picture as too large. Choose a lower resolution.";
  const said = `${message[0].toUpperCase()}${message.slice(1)}`.replace(/[^.!?]$/, "$&.");
  return status ? `${said} (Status ${status}.)` : said;
}
