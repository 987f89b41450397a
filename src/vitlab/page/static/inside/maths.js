/** What the page computes from the arrays of a trace. Pure functions on typed arrays; no DOM, so that Node can test them.
 *
 * Shapes: attention (L, h, n, n), tokens (L+1, n, D), both flat in row-major order. n tokens are `prefix` tokens (class,
 * distillation) followed by N patches. `kept` holds 1 for patches that take part and 0 for dropped ones.
 */

export function softmax(logits) {
  let largest = -Infinity;
  for (const value of logits) largest = Math.max(largest, value);
  const found = Float64Array.from(logits, (value) => Math.exp(value - largest));
  let total = 0;
  for (const value of found) total += value;
  return found.map((value) => value / total);
}

export function sigmoid(logits) {
  return Float64Array.from(logits, (value) => 1 / (1 + Math.exp(-value)));
}

/** Probabilities of the classes: a softmax, or for a multi-label model a sigmoid per class. */
export function probabilities(logits, task) {
  return task === "multi-label" ? sigmoid(logits) : softmax(logits);
}

/** The `count` largest values with their indices, largest first; the lower index first among equals. */
export function largest(values, count) {
  const order = Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
  return order.slice(0, count).map((index) => ({ index, value: values[index] }));
}

/** Entropy in bits. */
export function entropy(shares) {
  let bits = 0;
  for (const share of shares) if (share > 0) bits -= share * Math.log2(share);
  return bits;
}

/** (L, h, n, n) -> (L, n, n): attention averaged over heads. */
export function meanOverHeads(attention, { layers, heads, n }) {
  const square = n * n;
  const found = new Float32Array(layers * square);
  for (let layer = 0; layer < layers; layer++) {
    const out = found.subarray(layer * square, (layer + 1) * square);
    for (let head = 0; head < heads; head++) {
      const one = attention.subarray((layer * heads + head) * square, (layer * heads + head + 1) * square);
      for (let i = 0; i < square; i++) out[i] += one[i];
    }
    for (let i = 0; i < square; i++) out[i] /= heads;
  }
  return found;
}

/** Weights (n,) over tokens that a query stands for: "class" is token 0, "mean" all patches, a number one patch. */
export function queryWeights(query, { n, prefix }, kept) {
  const weights = new Float64Array(n);
  if (query === "class") weights[0] = 1;
  else if (query !== "mean") weights[prefix + query] = 1;
  else {
    const patches = n - prefix;
    let count = 0;
    for (let i = 0; i < patches; i++) count += kept[i];
    for (let i = 0; i < patches; i++) weights[prefix + i] = kept[i] / Math.max(count, 1);
  }
  return weights;
}

/** weights (n,) times a matrix (n, n) -> (n,). */
function applied(weights, matrix, n) {
  const found = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const weight = weights[i];
    if (weight === 0) continue;
    const row = matrix.subarray(i * n, (i + 1) * n);
    for (let j = 0; j < n; j++) found[j] += weight * row[j];
  }
  return found;
}

/** Where one head of one layer (counted from 0) looks from the query: (n,), which sums to 1. */
export function attentionFrom(weights, attention, { heads, n }, layer, head) {
  const start = (layer * heads + head) * n * n;
  return applied(weights, attention.subarray(start, start + n * n), n);
}

/** Attention rollout through the first `depth` layers: (n,), which sums to 1.
 *
 * A row of the product of (A + I) / 2 over layers. Starting at the query, each layer costs one vector-matrix product.
 */
export function rollout(weights, meanAttention, n, depth) {
  let row = Float64Array.from(weights);
  for (let layer = depth - 1; layer >= 0; layer--) {
    const next = applied(row, meanAttention.subarray(layer * n * n, (layer + 1) * n * n), n);
    for (let i = 0; i < n; i++) next[i] = (next[i] + row[i]) / 2;
    row = next;
  }
  return row;
}

/** (N, N): distances between the centres of patches, in pixels of the model's input. */
export function patchDistances([rows, columns], [height, width]) {
  const count = rows * columns;
  const found = new Float64Array(count * count);
  for (let i = 0; i < count; i++) {
    for (let j = 0; j < count; j++) {
      const down = ((Math.floor(i / columns) - Math.floor(j / columns)) * height) / rows;
      const across = (((i % columns) - (j % columns)) * width) / columns;
      found[i * count + j] = Math.sqrt(down * down + across * across);
    }
  }
  return found;
}

/** (L, h): mean over patches of the expected distance of what they attend to; other tokens are left out. */
export function attentionDistances(attention, { layers, heads, n, prefix }, distances, kept) {
  const patches = n - prefix;
  const found = new Float64Array(layers * heads);
  let count = 0;
  for (let i = 0; i < patches; i++) count += kept[i];
  for (let map = 0; map < layers * heads; map++) {
    let total = 0;
    for (let i = 0; i < patches; i++) {
      if (!kept[i]) continue;
      const row = map * n * n + (prefix + i) * n + prefix;
      for (let j = 0; j < patches; j++) total += attention[row + j] * distances[i * patches + j];
    }
    found[map] = total / Math.max(count, 1);
  }
  return found;
}

/** The attention distance of a head with uniform attention over all n tokens. */
export function evenDistance(distances, n) {
  let total = 0;
  for (const distance of distances) total += distance;
  return total / (Math.sqrt(distances.length) * n);
}

/** Cosine similarity (count,) of row `index` of `vectors` (count, width) with every row; 0 with a zero vector. */
export function cosineSimilarity(vectors, count, width, index) {
  const found = new Float64Array(count);
  const lengths = norms(vectors, count, width);
  const own = index * width;
  for (let i = 0; i < count; i++) {
    let product = 0;
    for (let k = 0; k < width; k++) product += vectors[own + k] * vectors[i * width + k];
    found[i] = product / Math.max(lengths[i] * lengths[index], 1e-300);
  }
  return found;
}

/** Euclidean norms (count,) of the rows of `vectors` (count, width). */
export function norms(vectors, count, width) {
  const found = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    let square = 0;
    for (let k = 0; k < width; k++) square += vectors[i * width + k] ** 2;
    found[i] = Math.sqrt(square);
  }
  return found;
}

const SPARE = 5; // directions beyond those asked for, which speed up convergence
const ITERATIONS = 300;

/** The first principal components of `vectors` (count, width): scores (count, components) and shares of the variance.
 *
 * Subspace iteration on the centred rows: no matrix larger than the input is made. The sign of a component is
 * arbitrary; here its largest score is positive.
 */
export function principalComponents(vectors, count, width, components) {
  const mean = new Float64Array(width);
  for (let i = 0; i < count; i++) for (let k = 0; k < width; k++) mean[k] += vectors[i * width + k] / count;
  const x = new Float64Array(count * width);
  let [variance, squares] = [0, 0];
  for (let i = 0; i < count; i++) {
    for (let k = 0; k < width; k++) {
      x[i * width + k] = vectors[i * width + k] - mean[k];
      variance += x[i * width + k] ** 2;
      squares += vectors[i * width + k] ** 2;
    }
  }
  if (variance <= 1e-24 * squares) return { scores: new Float64Array(count * components), share: Array(components).fill(0) };
  const rank = Math.min(components + SPARE, count, width);
  let basis = startingBasis(count, rank); // (rank, count), orthonormal
  let values = new Float64Array(rank);
  for (let iteration = 0; iteration < ITERATIONS; iteration++) {
    const turned = ritz(x, basis, count, width, rank);
    basis = turned.basis;
    let change = 0;
    for (let i = 0; i < Math.min(components, rank); i++) change = Math.max(change, Math.abs(turned.values[i] - values[i]));
    values = turned.values;
    if (change <= 1e-12 * Math.max(values[0], 1e-300) && iteration > 1) break;
    basis = orthonormal(multiplied(x, basis, count, width, rank), rank, count);
  }
  const scores = new Float64Array(count * components);
  for (let c = 0; c < Math.min(components, rank); c++) {
    const size = Math.sqrt(Math.max(values[c], 0));
    let peak = 0;
    for (let i = 0; i < count; i++) if (Math.abs(basis[c * count + i]) > Math.abs(peak)) peak = basis[c * count + i];
    for (let i = 0; i < count; i++) scores[i * components + c] = basis[c * count + i] * size * (peak < 0 ? -1 : 1);
  }
  const share = Array.from({ length: components }, (_, c) => (c < rank ? values[c] / variance : 0));
  return { scores, share };
}

function startingBasis(count, rank) {
  const basis = new Float64Array(rank * count);
  let state = 1;
  for (let i = 0; i < basis.length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // any fixed numbers without a pattern will do
    basis[i] = state / 2 ** 32 - 0.5;
  }
  return orthonormal(basis, rank, count);
}

/** basis (rank, count) times X X^T -> (rank, count). */
function multiplied(x, basis, count, width, rank) {
  const found = new Float64Array(rank * count);
  const seen = new Float64Array(width);
  for (let r = 0; r < rank; r++) {
    projected(x, basis.subarray(r * count, (r + 1) * count), width, seen);
    for (let i = 0; i < count; i++) {
      let total = 0;
      for (let k = 0; k < width; k++) total += x[i * width + k] * seen[k];
      found[r * count + i] = total;
    }
  }
  return found;
}

function projected(x, weights, width, out) {
  out.fill(0);
  weights.forEach((weight, i) => {
    for (let k = 0; k < width; k++) out[k] += weight * x[i * width + k];
  });
}

/** Turn the basis so that its rows are the best approximations of components, largest variance first. */
function ritz(x, basis, count, width, rank) {
  const seen = Array.from({ length: rank }, () => new Float64Array(width));
  seen.forEach((out, r) => projected(x, basis.subarray(r * count, (r + 1) * count), width, out));
  const small = seen.map((a) => seen.map((b) => a.reduce((total, value, k) => total + value * b[k], 0)));
  const { values, vectors } = symmetricEigen(small);
  const order = Array.from(values.keys()).sort((a, b) => values[b] - values[a]);
  const turned = new Float64Array(rank * count);
  order.forEach((from, to) => {
    for (let r = 0; r < rank; r++) {
      const weight = vectors[r][from];
      for (let i = 0; i < count; i++) turned[to * count + i] += weight * basis[r * count + i];
    }
  });
  return { basis: turned, values: Float64Array.from(order, (from) => values[from]) };
}

/** Gram-Schmidt on the rows, twice against rounding; a row that vanishes becomes zero. */
function orthonormal(rows, rank, count) {
  for (let r = 0; r < rank; r++) {
    const row = rows.subarray(r * count, (r + 1) * count);
    const before = Math.sqrt(row.reduce((total, value) => total + value * value, 0));
    for (let pass = 0; pass < 2; pass++) {
      for (let s = 0; s < r; s++) {
        const other = rows.subarray(s * count, (s + 1) * count);
        let product = 0;
        for (let i = 0; i < count; i++) product += row[i] * other[i];
        for (let i = 0; i < count; i++) row[i] -= product * other[i];
      }
    }
    const size = Math.sqrt(row.reduce((total, value) => total + value * value, 0));
    for (let i = 0; i < count; i++) row[i] = size > 1e-10 * before ? row[i] / size : 0;
  }
  return rows;
}

/** Eigenvalues and eigenvectors (in columns) of a small symmetric matrix by Jacobi rotations. */
function symmetricEigen(matrix) {
  const size = matrix.length;
  const a = matrix.map((row) => Float64Array.from(row));
  const vectors = a.map((_, i) => Float64Array.from(a, (__, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < size; p++) for (let q = p + 1; q < size; q++) off += a[p][q] ** 2;
    if (off === 0) break;
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        if (a[p][q] === 0) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1);
        const s = t * c;
        for (let k = 0; k < size; k++) [a[k][p], a[k][q]] = [c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]];
        for (let k = 0; k < size; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
        for (let k = 0; k < size; k++) {
          [vectors[k][p], vectors[k][q]] = [c * vectors[k][p] - s * vectors[k][q], s * vectors[k][p] + c * vectors[k][q]];
        }
      }
    }
  }
  return { values: a.map((row, i) => row[i]), vectors };
}

/** A permutation of 0..count-1 that depends only on the seed; seed 0 changes nothing. */
export function shuffled(count, seed) {
  const order = Uint32Array.from({ length: count }, (_, i) => i);
  if (seed === 0) return order;
  let state = seed >>> 0;
  const draw = () => {
    state = (state + 0x6d2b79f5) >>> 0; // a step of a Weyl sequence, then a mix of its bits
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(draw() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}
