/** One picture read by one model: the arrays of a trace, and what the views derive from them, computed when first asked.
 *
 * Layers are counted as in the paper: layer 1 to L; "layer 0" is the embedding z_0, which has tokens and an answer but
 * no attention. Heads are counted from 0 here and from 1 on the screen.
 */
import { componentColours } from "./colours.js";
import * as maths from "./maths.js";

/** The grid of patches at an image size. */
export function gridAt(card, [height, width]) {
  if (!hasLayers(card)) return [0, 0];
  return [Math.round(height / card.patch), Math.round(width / card.patch)];
}

export const hasLayers = (card) => card.kind !== "answers only";

/** What a query is called in a sentence. */
export function queryName(query, [, columns]) {
  if (query === "class") return "the class token";
  if (query === "mean") return "the average patch";
  return `the patch in row ${Math.floor(query / columns) + 1}, column ${(query % columns) + 1}`;
}

export class Reading {
  #known = new Map();

  constructor(card, size, trace, kept, pixels) {
    this.card = card;
    this.size = size;
    this.trace = trace;
    this.kept = kept;
    this.pixels = pixels;
    this.grid = gridAt(card, size);
    this.patches = this.grid[0] * this.grid[1];
    this.prefix = card.prefix;
    this.layers = card.layers;
    this.heads = card.heads;
    this.n = this.prefix + this.patches;
  }

  #once(key, compute) {
    if (!this.#known.has(key)) this.#known.set(key, compute());
    return this.#known.get(key);
  }

  /** Probabilities (K,) of the classes after a layer. */
  answer(layer) {
    const classes = this.card.classes;
    const row = hasLayers(this.card) ? layer : 0;
    const logits = this.trace.layerLogits.subarray(row * classes, (row + 1) * classes);
    return this.#once(`answer ${row}`, () => maths.probabilities(logits, this.card.task));
  }

  /** Probabilities (K,) of the model's final answer. */
  get final() {
    return this.#once("final", () => maths.probabilities(this.trace.logits, this.card.task));
  }

  className(index) {
    return this.card.class_names[index] ?? `class ${index}`;
  }

  /** The query itself, or who looks instead: from a dropped patch the class token, and without one the average patch. */
  query(query) {
    const patch = typeof query === "number" ? Math.min(query, this.patches - 1) : null;
    if (patch !== null && this.kept[patch]) return patch;
    return query !== "mean" && this.prefix ? "class" : "mean";
  }

  #weights(query) {
    return maths.queryWeights(this.query(query), this, this.kept);
  }

  /** Where a head looks from the query: (n,), which sums to 1. */
  tokensSeen(layer, head, query) {
    const from = this.query(query);
    if (from === "mean") {
      const weights = () => this.#weights(query);
      const key = `mean ${layer} ${head}`;
      return this.#once(key, () => maths.attentionFrom(weights(), this.trace.attention, this, layer - 1, head));
    }
    const token = from === "class" ? 0 : this.prefix + from;
    const start = (((layer - 1) * this.heads + head) * this.n + token) * this.n;
    return this.trace.attention.subarray(start, start + this.n);
  }

  /** The part of `tokensSeen` that falls on patches: (N,). */
  headMap(layer, head, query) {
    return this.tokensSeen(layer, head, query).subarray(this.prefix);
  }

  get #meanAttention() {
    return this.#once("mean attention", () => maths.meanOverHeads(this.trace.attention, this));
  }

  /** Attention rollout of the patches through layers 1 to `layer`: (N,). */
  rollout(layer, query) {
    const key = `rollout ${layer} ${query}`;
    const weights = () => this.#weights(query);
    return this.#once(key, () => maths.rollout(weights(), this.#meanAttention, this.n, layer).subarray(this.prefix));
  }

  /** Tokens (n, D) after a layer. */
  tokens(layer) {
    const { width } = this.card;
    return this.trace.tokens.subarray(layer * this.n * width, (layer + 1) * this.n * width);
  }

  /** Cosine similarity of every patch to the query after a layer: (N,). */
  similarity(layer, query) {
    return this.#once(`similarity ${layer} ${query}`, () => {
      const { width } = this.card;
      const weights = this.#weights(query);
      const tokens = this.tokens(layer);
      const vectors = new Float32Array((this.patches + 1) * width); // the patches, then the query
      vectors.set(tokens.subarray(this.prefix * width));
      for (let i = 0; i < this.n; i++) {
        if (weights[i]) for (let k = 0; k < width; k++) vectors[this.patches * width + k] += weights[i] * tokens[i * width + k];
      }
      return maths.cosineSimilarity(vectors, this.patches + 1, width, this.patches).subarray(0, this.patches);
    });
  }

  /** Colours (N, 3) of the patches after a layer, from the first three principal components; and their shares.
   *
   * Of their directions: a few patches with a large norm would otherwise be all that the components show. The sign of
   * a component is such that the border of the picture is dark, so that layers have like colours.
   */
  colours(layer) {
    return this.#once(`colours ${layer}`, () => {
      const { width } = this.card;
      const tokens = this.tokens(layer);
      const places = [...this.kept.keys()].filter((place) => this.kept[place]);
      const vectors = new Float32Array(places.length * width);
      places.forEach((place, row) => {
        const start = (this.prefix + place) * width;
        const size = this.norms(layer)[this.prefix + place] || 1;
        vectors.set(tokens.subarray(start, start + width).map((value) => value / size), row * width);
      });
      const { scores, share } = maths.principalComponents(vectors, places.length, width, 3);
      const spread = new Float64Array(3 * this.patches);
      places.forEach((place, row) => spread.set(scores.subarray(3 * row, 3 * row + 3), 3 * place));
      for (let c = 0; c < 3; c++) {
        const border = places.reduce((total, place) => total + (this.#isBorder(place) ? spread[3 * place + c] : 0), 0);
        if (border > 0) for (const place of places) spread[3 * place + c] *= -1;
      }
      return { colours: componentColours(spread, this.patches, this.kept), share };
    });
  }

  #isBorder(patch) {
    const [rows, columns] = this.grid;
    const [row, column] = [Math.floor(patch / columns), patch % columns];
    return row === 0 || column === 0 || row === rows - 1 || column === columns - 1;
  }

  /** Whether `colours` of a layer has been computed, so that it costs nothing. */
  hasColours(layer) {
    return this.#known.has(`colours ${layer}`);
  }

  get #patchDistances() {
    return this.#once("patch distances", () => maths.patchDistances(this.grid, this.size));
  }

  /** Attention distance (L, h) in pixels. */
  get distances() {
    return this.#once("distances", () =>
      maths.attentionDistances(this.trace.attention, this, this.#patchDistances, this.kept),
    );
  }

  get evenDistance() {
    return this.#once("even distance", () => maths.evenDistance(this.#patchDistances, this.n));
  }

  /** Norms (n,) of the tokens after a layer. */
  norms(layer) {
    return this.#once(`norms ${layer}`, () => maths.norms(this.tokens(layer), this.n, this.card.width));
  }

  /** Norms (n,) of what a layer adds to its input. */
  updates(layer) {
    return this.#once(`updates ${layer}`, () => {
      const [before, after] = [this.tokens(layer - 1), this.tokens(layer)];
      return maths.norms(after.map((value, i) => value - before[i]), this.n, this.card.width);
    });
  }

  /** Mean over the tokens that take part. */
  mean(perToken) {
    let [total, count] = [0, 0];
    for (let i = 0; i < this.n; i++) {
      if (i >= this.prefix && !this.kept[i - this.prefix]) continue;
      total += perToken[i];
      count += 1;
    }
    return total / Math.max(count, 1);
  }
}

/** What a view paints over the picture: `values` with their range and unit, or `colours`. */
export function overlay(reading, { view, layer, head, query }) {
  if (!hasLayers(reading.card) || view === "picture") return null;
  const attending = Math.max(layer, 1);
  if (view === "colours") return { ...reading.colours(layer), kind: "colours" };
  if (view === "similarity") return scaled(reading, reading.similarity(layer, query), "cosine", query);
  if (view === "rollout") return scaled(reading, reading.rollout(attending, query), "rollout");
  const values = reading.headMap(attending, head, query);
  return { kind: "values", values, low: 0, high: most(values), unit: "attention" };
}

/** Values from their smallest to their largest, leaving out dropped patches and the query, which is like itself. */
function scaled(reading, values, unit, query = null) {
  let [low, high] = [Infinity, -Infinity];
  values.forEach((value, i) => {
    if (!reading.kept[i] || i === query) return;
    low = Math.min(low, value);
    high = Math.max(high, value);
  });
  return { kind: "values", values, low, high, unit };
}

export function most(values) {
  let found = 0;
  for (const value of values) if (value > found) found = value;
  return found;
}
