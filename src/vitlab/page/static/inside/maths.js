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
 * Subspace iteration on the products of the centred columns or, if there are fewer rows, of the rows. The sign of a
 * component is arbitrary; here its largest score is positive.
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
  const scores = new Float64Array(count * components);
  if (variance <= 1e-24 * squares) return { scores, share: Array(components).fill(0) };
  const isTall = width <= count;
  const size = isTall ? width : count;
  const { basis, values } = leading(isTall ? columnProducts(x, count, width) : rowProducts(x, count, width), size, components);
  for (let c = 0; c < Math.min(components, values.length); c++) {
    const one = basis.subarray(c * size, (c + 1) * size);
    const found = isTall ? rowsTimes(x, one, count, width) : one.map((value) => value * Math.sqrt(Math.max(values[c], 0)));
    let peak = 0;
    for (const score of found) if (Math.abs(score) > Math.abs(peak)) peak = score;
    for (let i = 0; i < count; i++) scores[i * components + c] = found[i] * (peak < 0 ? -1 : 1);
  }
  const share = Array.from({ length: components }, (_, c) => (c < values.length ? values[c] / variance : 0));
  return { scores, share };
}

/** X (count, width) -> X^T X (width, width). */
function columnProducts(x, count, width) {
  const found = new Float64Array(width * width);
  for (let i = 0; i < count; i++) {
    const row = x.subarray(i * width, (i + 1) * width);
    for (let k = 0; k < width; k++) {
      const [value, at] = [row[k], k * width];
      for (let l = k; l < width; l++) found[at + l] += value * row[l];
    }
  }
  return mirrored(found, width);
}

/** X (count, width) -> X X^T (count, count). */
function rowProducts(x, count, width) {
  const found = new Float64Array(count * count);
  for (let i = 0; i < count; i++) {
    const row = x.subarray(i * width, (i + 1) * width);
    for (let j = i; j < count; j++) {
      let total = 0;
      for (let k = 0; k < width; k++) total += row[k] * x[j * width + k];
      found[i * count + j] = total;
    }
  }
  return mirrored(found, count);
}

/** Copy what is above the diagonal of a square matrix below it. */
function mirrored(matrix, size) {
  for (let i = 0; i < size; i++) for (let j = 0; j < i; j++) matrix[i * size + j] = matrix[j * size + i];
  return matrix;
}

/** X (count, width) times a vector (width,) -> (count,). */
function rowsTimes(x, vector, count, width) {
  const found = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    let total = 0;
    for (let k = 0; k < width; k++) total += x[i * width + k] * vector[k];
    found[i] = total;
  }
  return found;
}

/** The largest eigenvalues of a symmetric matrix (size, size) and their vectors, in rows; a few more than `wanted`. */
function leading(matrix, size, wanted) {
  const rank = Math.min(wanted + SPARE, size);
  let basis = startingBasis(size, rank); // (rank, size), orthonormal
  let values = new Float64Array(rank);
  for (let iteration = 0; iteration < ITERATIONS; iteration++) {
    const next = new Float64Array(rank * size); // basis times matrix
    for (let r = 0; r < rank; r++) next.set(rowsTimes(matrix, basis.subarray(r * size, (r + 1) * size), size, size), r * size);
    const { order, vectors, found } = ritz(basis, next, size, rank);
    basis = turned(basis, order, vectors, size);
    let change = 0;
    for (let i = 0; i < Math.min(wanted, rank); i++) change = Math.max(change, Math.abs(found[i] - values[i]));
    values = found;
    if (change <= 1e-12 * Math.max(values[0], 1e-300) && iteration > 1) break;
    if (iteration < ITERATIONS - 1) basis = orthonormal(turned(next, order, vectors, size), rank, size);
  }
  return { basis, values };
}

function startingBasis(size, rank) {
  const basis = new Float64Array(rank * size);
  let state = 1;
  for (let i = 0; i < basis.length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // any fixed numbers without a pattern will do
    basis[i] = state / 2 ** 32 - 0.5;
  }
  return orthonormal(basis, rank, size);
}

/** How to turn a basis so that its rows are the best approximations of eigenvectors: largest value first. */
function ritz(basis, multiplied, size, rank) {
  const lines = (rows) => Array.from({ length: rank }, (_, r) => rows.subarray(r * size, (r + 1) * size));
  const others = lines(multiplied);
  const small = lines(basis).map((one) => others.map((other) => one.reduce((total, value, k) => total + value * other[k], 0)));
  const { values, vectors } = symmetricEigen(small.map((line, r) => line.map((value, s) => (value + small[s][r]) / 2)));
  const order = Array.from(values.keys()).sort((a, b) => values[b] - values[a]);
  return { order, vectors, found: Float64Array.from(order, (from) => values[from]) };
}

/** Rows (rank, size) turned by a small matrix of vectors in columns. */
function turned(rows, order, vectors, size) {
  const found = new Float64Array(rows.length);
  order.forEach((from, to) => {
    for (let r = 0; r < order.length; r++) {
      const weight = vectors[r][from];
      for (let i = 0; i < size; i++) found[to * size + i] += weight * rows[r * size + i];
    }
  });
  return found;
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
    let [off, on] = [0, 0];
    for (let p = 0; p < size; p++) {
      on += a[p][p] ** 2;
      for (let q = p + 1; q < size; q++) off += a[p][q] ** 2;
    }
    if (off <= 1e-31 * on) break;
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
