/** The model runs on the server that the page came from; see the HTTP API in page/trace.py and the service. */

export async function openServed() {
  const answer = await asked("api/models");
  const { models, has_runs: hasRuns } = await answer.json();
  return { cards: models, where: "server", hasRuns, trace };
}

async function trace(id, pixels, keep, [height, width]) {
  const start = performance.now();
  const body = new Uint8Array(pixels.length + Math.ceil(keep.length / 8));
  body.set(pixels);
  keep.forEach((isKept, patch) => {
    if (isKept) body[pixels.length + (patch >> 3)] |= 1 << (patch & 7);
  });
  const query = new URLSearchParams({ model: id, size: `${height}x${width}` });
  const headers = { "Content-Type": "application/octet-stream" };
  const answer = await asked(`api/trace?${query}`, { method: "POST", body, headers });
  const { logits, layer_logits: layerLogits, attention, tokens } = arrays(await answer.arrayBuffer());
  return {
    logits: logits.values,
    layerLogits: layerLogits.values,
    attention: attention.values,
    tokens: tokens.values,
    n: tokens.shape[1],
    milliseconds: performance.now() - start,
  };
}

async function asked(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Error("the server does not answer; is it still running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const error = new Error(said.error?.message ?? `the server answered with status ${answer.status}`);
  error.status = answer.status;
  throw error;
}

/** Read the arrays of `Traced.to_bytes` as {name: {shape, values}}; 8-bit values are shares of 255. */
export function arrays(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const found = {};
  for (const { name, dtype, shape, offset } of header.arrays) {
    const count = shape.reduce((product, side) => product * side, 1);
    const start = 4 + length + offset;
    if (dtype === "uint8") {
      const values = Float32Array.from(new Uint8Array(buffer, start, count), (value) => value / 255);
      found[name] = { shape, values };
    } else {
      found[name] = { shape, values: new Float32Array(buffer, start, count) };
    }
  }
  return found;
}
