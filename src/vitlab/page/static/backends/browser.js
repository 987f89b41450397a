/** The model runs in this browser, in a worker, so that the page stays responsive. Nothing is uploaded. */

export async function openBrowser() {
  const answer = await fetch("api/models.json");
  if (!answer.ok) throw new Error(`api/models.json cannot be loaded (status ${answer.status}); export the page again`);
  const { models } = await answer.json();
  const worker = new Tracer();
  const trace = async (id, pixels, keep, [height, width]) => {
    const start = performance.now();
    const card = models.find((one) => one.id === id);
    const graph = card?.graphs[`${height}x${width}`];
    if (!graph) throw new Error(`this page has no model ${id} for pictures of ${height}x${width}`);
    const patches = card.patch ? (height * width) / card.patch ** 2 : 0;
    if (pixels.length !== height * width * 3 || keep.length !== patches) {
      throw new Error(`expected ${height * width * 3} bytes and ${patches} patches, not ${pixels.length} and ${keep.length}`);
    }
    if (card.pool === "mean" && patches && !keep.some(Boolean)) {
      throw new Error("no patch is kept, but this model's answer is the mean of its patches; keep one or more");
    }
    const found = await worker.ask({ graph, weights: card.weights, pixels, keep, height, width });
    return { ...found, milliseconds: performance.now() - start };
  };
  return { cards: models, where: "browser", trace };
}

/** Questions to the worker and its answers, by number. */
class Tracer {
  #worker = null;
  #waiting = new Map();
  #asked = 0;

  ask(question) {
    this.#worker ??= this.#start();
    const number = this.#asked++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(number, { resolve, reject });
      this.#worker.postMessage({ number, ...question });
    });
  }

  #start() {
    const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    worker.addEventListener("message", ({ data: { number, found, problem } }) => {
      const { resolve, reject } = this.#waiting.get(number);
      this.#waiting.delete(number);
      if (problem) reject(new Error(problem));
      else resolve(found);
    });
    worker.addEventListener("error", (event) => {
      event.preventDefault(); // it is reported to those who wait
      this.#fail(event.message ?? "its script cannot be loaded");
    });
    return worker;
  }

  /** Give up what is waiting; the next question starts a new worker. */
  #fail(why) {
    this.#worker?.terminate();
    this.#worker = null;
    for (const { reject } of this.#waiting.values()) reject(new Error(`the model stopped: ${why}`));
    this.#waiting.clear();
  }
}
