/** The back end of the page: a server, or this browser. Both have the same interface:
 *
 * `cards` are the cards of all models; `where` is "server", or "browser", where nothing is uploaded.
 * `trace(id, pixels, keep, [height, width])` takes height * width * 3 bytes of RGB and a 0 or 1 for each patch. It
 * resolves to {logits, layerLogits, attention, tokens, n, milliseconds}: Float32Arrays of K, (L+1) K, L h n n and
 * (L+1) n D numbers, the length n of the sequence, and the time it took. For a model that shows only its answers, n is 0
 * and attention and tokens are empty. An error has a message for the person at the screen.
 */
import { where } from "./place.js";

export async function openBackend() {
  if (where === "server") {
    const { openServed } = await import("./served.js");
    return openServed();
  }
  const { openBrowser } = await import("./browser.js");
  return openBrowser();
}
