/** Runs the trace graphs of page/graphs.py with onnxruntime-web, on one thread: static hosts rarely allow more. */
import * as ort from "../runtime/ort.wasm.bundle.min.mjs";

const MOST_BYTES = 2 ** 29; // of the weights of all sessions that are kept
const HOME = new URL("../", import.meta.url); // of the page

ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = { wasm: new URL("runtime/ort-wasm-simd-threaded.wasm", HOME).href }; // its script is bundled
ort.env.logLevel = "error";

const sessions = new Map(); // by the address of the graph, the one used last at the end
let lastWeights = { key: "", bytes: null };
let before = Promise.resolve();

self.addEventListener("message", ({ data }) => {
  before = before.then(() => answer(data)); // one at a time
});

async function answer({ number, ...question }) {
  try {
    const found = await trace(question);
    const parts = [found.logits, found.layerLogits, found.attention, found.tokens];
    self.postMessage({ number, found }, [...new Set(parts.map((part) => part.buffer))]);
  } catch (error) {
    self.postMessage({ number, problem: error?.message ?? String(error) });
  }
}

async function trace({ graph, weights, pixels, keep, height, width }) {
  const { session } = await opened(graph, weights);
  const inputs = { pixels: new ort.Tensor("float32", planes(pixels), [1, 3, height, width]) };
  if (session.inputNames.includes("keep")) {
    inputs.keep = new ort.Tensor("float32", Float32Array.from(keep, (isKept) => (isKept ? 1 : 0)), [1, keep.length]);
  }
  const results = await session.run(inputs);
  const values = (name) => (name in results ? new Float32Array(results[name].data) : new Float32Array(0));
  if (values("logits").some((value) => !Number.isFinite(value))) {
    throw new Error("the model returned NaN or infinity: it diverged in training, or its file is damaged");
  }
  return {
    logits: values("logits"),
    layerLogits: values("layer_logits"),
    attention: values("attention"),
    tokens: values("tokens"),
    n: results.tokens?.dims[1] ?? 0,
  };
}

/** H*W*3 bytes of RGB -> 3*H*W numbers. */
function planes(pixels) {
  const area = pixels.length / 3;
  const result = new Float32Array(pixels.length);
  for (let channel = 0; channel < 3; channel++) {
    for (let i = 0; i < area; i++) result[channel * area + i] = pixels[3 * i + channel];
  }
  return result;
}

/** The session of a graph; those that were not used for longest make room for it. */
async function opened(graph, weights) {
  const known = sessions.get(graph.url);
  if (known) {
    sessions.delete(graph.url);
    sessions.set(graph.url, known);
    return known;
  }
  const size = weights.pieces.reduce((sum, piece) => sum + piece.bytes, 0);
  let total = size + [...sessions.values()].reduce((sum, one) => sum + one.size, 0);
  for (const [url, { session, size: freed }] of [...sessions]) {
    if (total <= MOST_BYTES) break;
    await session.release();
    sessions.delete(url);
    total -= freed;
  }
  const [model, data] = await Promise.all([joined([graph]), shared(weights)]);
  const session = await ort.InferenceSession.create(model, {
    executionProviders: ["wasm"],
    externalData: [{ path: weights.name, data }],
  });
  sessions.set(graph.url, { session, size });
  return sessions.get(graph.url);
}

/** The weights of a model, which its graphs for all sizes share; those used last are kept. */
async function shared(weights) {
  const key = weights.pieces[0].url;
  if (lastWeights.key !== key) {
    lastWeights = { key: "", bytes: null }; // before the next are loaded, so that not both are in memory
    lastWeights = { key, bytes: await joined(weights.pieces) };
  }
  return lastWeights.bytes;
}

/** Files of known sizes, one after the other. */
async function joined(pieces) {
  const result = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.bytes, 0));
  let at = 0;
  for (const { url, bytes } of pieces) {
    const response = await fetch(new URL(url, HOME)).catch(() => null);
    if (!response?.ok) throw new Error(`${url} cannot be loaded (${response?.status ?? "no connection"}); try again`);
    const data = new Uint8Array(await response.arrayBuffer());
    if (data.length !== bytes) throw new Error(`${url} has ${data.length} bytes instead of ${bytes}; reload the page`);
    result.set(data, at);
    at += bytes;
  }
  return result;
}
