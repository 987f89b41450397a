/** The page: opens the back end, restores the view of the address, and connects the views to the state. */
import { changeText, drawAnswers, drawLayerAnswer, drawLayers, markLayer, settledText } from "./answers.js";
import { openBackend } from "../backends/index.js";
import { TABLE } from "./colours.js";
import { connectComparison } from "./comparison.js";
import { drawDistances } from "./distance.js";
import { $, asCanvas, choice, element, percent, sizedContext } from "../dom.js";
import { download } from "./download.js";
import { brush, connectEditing, fresh } from "./editing.js";
import { noEdits } from "./edits.js";
import { drawEquations } from "./equations.js";
import { HeadGrid } from "./head_grid.js";
import { connectKeyboard, KEYS } from "./keyboard.js";
import { LayerStrip } from "./layer_strip.js";
import { PatchCanvas } from "./patch_canvas.js";
import { connectPermalink, fromHash, unknownModels } from "./permalink.js";
import { connectPictures, markSample, openSample } from "./picture_input.js";
import { hasLayers, overlay, queryName } from "./reading.js";
import { connectResolution } from "./resolution.js";
import { legendText, place, sentence, valueText } from "./sentences.js";
import { Store } from "./store.js";
import { Tracing } from "./tracing.js";
import { drawFilters, PositionTiles } from "./weights_view.js";

const VIEW_NAMES = [
  { value: "rollout", label: "All heads", title: "Attention rollout: all heads and layers together (1)" },
  { value: "head", label: "One head", title: "The attention of one head of one layer (2)" },
  { value: "similarity", label: "Similarity", title: "Cosine similarity to the query after a layer (3)" },
  { value: "colours", label: "Colours", title: "The first three principal components of the patches (4)" },
  { value: "picture", label: "Picture", title: "Nothing over the picture (5)" },
];
const QUERY_NAMES = [
  { value: "class", label: "class token", title: "The token that becomes the answer (c)" },
  { value: "mean", label: "average patch", title: "The mean over all patches (m)" },
];

/** What is on the screen: the fixed choice, and over it what the pointer previews. */
const shown = (state) => ({ ...state, ...state.hover });
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const inner = (holder) => {
  const style = getComputedStyle(holder);
  return Math.floor(holder.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
};

async function start() {
  const backend = await openBackend();
  if (!backend.cards.length) throw new Error("there is no model; start `vitlab serve MODEL` with one");
  const samples = await listSamples(backend);
  const { sample, ...view } = fromHash(location.hash, backend.cards);
  const store = new Store({
    ...view, picture: null, tool: "look", hover: null, status: { kind: "busy", text: "Loading…" },
    first: null, firstOriginal: null, second: null, secondOriginal: null,
  });
  const tracing = new Tracing(backend, store);
  const card = (id) => tracing.card(id);
  describe(backend, store, card);
  connectStatus(store, tracing);
  connectControls(store, card);
  connectMain(store);
  connectAnswers(store);
  connectWeights(store, card);
  connectEditing(store, card);
  connectResolution(store, card);
  connectComparison(store, card, { shown, colour, inner });
  connectKeyboard(store, { click: (id) => $(id).click(), showHelp: () => $("help").showModal() });
  connectDownloads(store);
  const restore = async (hash) => {
    const { sample: name, ...view } = fromHash(hash, backend.cards);
    store.set({ ...view, hover: null });
    tellUnknown(store, hash, backend.cards);
    const { picture } = store.state;
    if (name && name !== "own" && !(picture?.kind === "sample" && picture.name === name)) await openNamed(store, samples, name);
  };
  connectPermalink(store, restore);
  connectPictures(samples, (picture) => showPicture(store, card, picture), (text) => fail(store, text));
  window.addEventListener("resize", () => store.set({ resized: {} }));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => store.set({ resized: {} }));
  document.documentElement.dataset.ready = "true";
  await openNamed(store, samples, sample);
  tellUnknown(store, location.hash, backend.cards);
}

/** The pictures that the page comes with; a page without any still works. */
async function listSamples({ where }) {
  const answer = await fetch(where === "browser" ? "api/samples.json" : "api/samples").catch(() => null);
  return answer?.ok ? answer.json() : [];
}

/** Open the sample of the address, or the first one without an address. Own pictures are not part of an address. */
async function openNamed(store, samples, name) {
  const found = samples.find((sample) => sample.name === name) ?? samples[0];
  if (!found) {
    store.set({ status: { kind: "ready", text: "Open a picture to begin." } });
    return;
  }
  try {
    const picture = await openSample(found);
    store.set({ picture });
    if (name === "own") fail(store, "This link was made with a picture that is not part of the link. Open that picture to see it the same way.");
    else if (name && found.name !== name) fail(store, `There is no sample picture named ${name} here; this is ${found.name}.`);
  } catch (error) {
    fail(store, error.message);
  }
}

/** Say so if a link names a model that this page does not have. */
function tellUnknown(store, hash, cards) {
  const [unknown] = unknownModels(hash, cards);
  const names = cards.map(({ id }) => id).join(", ");
  if (unknown) fail(store, `This link is to the model ${unknown}, which this page does not have. It has ${names}.`);
}

function showPicture(store, card, picture) {
  store.set({ picture, edits: fresh(store.state, card), hover: null, notice: null });
}

function fail(store, text) {
  store.set({ notice: { text } });
}

/** The header and the footer: models, where they run. */
function describe(backend, store, card) {
  $("where").textContent = backend.where === "browser"
    ? "The model runs in this browser. Nothing is uploaded."
    : `Pictures are sent to the server at ${location.host}.`;
  $("runs-link").hidden = !backend.hasRuns;
  $("model").replaceChildren(...backend.cards.map(({ id, name }) => element("option", { value: id }, name)));
  $("model").addEventListener("change", () => chooseModel(store, card($("model").value)));
  const none = element("option", { value: "" }, "none");
  $("other").replaceChildren(none, ...backend.cards.map(({ id, name }) => element("option", { value: id }, name)));
  $("other").addEventListener("change", () => store.set({ other: $("other").value || null }));
  $("other-label").hidden = backend.cards.length < 2;
  const show = ({ model, other }) => {
    [$("model").value, $("other").value] = [model, other ?? ""];
    [$("model").title, $("other").title] = [card(model).name, card(other)?.name ?? ""]; // long names are cut
    for (const option of $("other").options) option.disabled = option.value === model;
    $("about").textContent = card(model).text;
    document.body.classList.toggle("answers-only", !hasLayers(card(model)));
  };
  store.on(["model", "other"], show);
  show(store.state);
}

/** Another model keeps the view as far as it has such a layer, head and patch. */
function chooseModel(store, card) {
  const { layer, head, query, other, size, edits } = store.state;
  const next = fromHash(`#model=${encodeURIComponent(card.id)}&size=${size.join("x")}`, [card]);
  const patches = next.edits.drop.length;
  store.set({
    model: card.id,
    other: other === card.id ? null : other,
    size: next.size,
    layer: Math.min(layer, card.layers),
    head: Math.max(Math.min(head, card.heads - 1), 0),
    query: typeof query === "number" && query < patches ? query : next.query,
    edits: patches === edits.drop.length ? edits : noEdits(patches),
    hover: null,
  });
}

function connectStatus(store, tracing) {
  store.on(["status", "notice"], ({ status, notice }) => {
    $("status").textContent = status.kind === "error" ? "" : status.text;
    $("main").classList.toggle("stale", status.kind !== "ready");
    $("main").setAttribute("aria-busy", String(status.kind === "busy"));
    $("save-svg").disabled = $("save-png").disabled = status.kind !== "ready"; // the picture is not yet that of the view
    const text = status.kind === "error" ? status.text : notice?.text ?? "";
    $("error").hidden = !text;
    $("error-text").textContent = text;
    $("retry").hidden = !status.retry;
    $("dismiss").hidden = status.kind === "error";
  });
  $("retry").addEventListener("click", () => tracing.refresh());
  $("dismiss").addEventListener("click", () => store.set({ notice: null }));
  store.on(["picture"], ({ picture }) => markSample(picture));
}

/** Views, queries, layer, head and overlay: the controls below the picture. */
function connectControls(store, card) {
  const pressView = choice($("views"), VIEW_NAMES, (view) => store.set({ view }));
  const pressQuery = choice($("queries"), QUERY_NAMES, (query) => store.set({ query }));
  for (const name of ["layer", "opacity"]) $(name).addEventListener("input", () => store.set({ [name]: Number($(name).value), hover: null }));
  $("head").addEventListener("input", () => store.set({ head: Number($("head").value) - 1, view: "head", hover: null }));
  $("shared").addEventListener("change", () => store.set({ isShared: $("shared").checked }));
  const show = (state) => {
    const { view, query, layer, head, opacity, isShared, model } = state;
    const { layers, heads, prefix, grid } = card(model);
    pressView(view);
    pressQuery(query);
    $("queries").querySelector("[data-value=class]").hidden = !prefix;
    $("query-text").textContent = typeof query === "number" ? queryName(query, state.first?.grid ?? grid).replace("the ", "") : "or click a patch";
    [$("layer").max, $("layer").value] = [layers, layer];
    [$("head").max, $("head").value] = [Math.max(heads, 1), head + 1];
    $("opacity").value = opacity;
    $("layer-text").textContent = layer === 0 ? "embedding" : `${layer} of ${layers}`;
    $("head-text").textContent = `${head + 1} of ${heads}`;
    $("opacity-text").textContent = `${opacity} %`;
    $("shared").checked = isShared;
  };
  store.on(["view", "query", "layer", "head", "opacity", "isShared", "model", "first"], show);
  show(store.state);
}

/** The picture, the heads, the layers and the distances: everything that follows layer, head and query. */
function connectMain(store) {
  const hover = (preview) => {
    const { hover: old } = store.state;
    if (JSON.stringify(old) !== JSON.stringify(preview)) store.set({ hover: preview });
  };
  const pick = (choice) => store.set({ ...choice, hover: null });
  const headOver = (at) => hover(at && { ...at, view: "head" });
  const headPick = (at) => pick({ ...at, view: "head" });
  const canvas = new PatchCanvas($("patches"), {
    hover: (patch) => hover(patch === null ? null : { pointed: patch }),
    pick: (patch) => {
      $("patches").focus({ preventScroll: true });
      pick({ query: patch });
    },
    brushes: () => store.state.tool !== "look",
    brush: (patch) => brush(store, patch),
  });
  const heads = new HeadGrid($("heads"), { hover: headOver, pick: headPick });
  const strip = new LayerStrip($("strip"), { hover, pick });
  const drawPicture = (state) => {
    const { first: reading } = state;
    if (!reading) return;
    const at = shown(state);
    const over = overlay(reading, at);
    const query = reading.query(at.query);
    const width = Math.min(inner($("picture-panel")), 520);
    canvas.draw(reading, { width, over, opacity: state.opacity, query, hovered: at.pointed, edits: state.edits });
    drawLegend(over);
    $("readout").textContent = readout(reading, at, over);
    const text = sentence(reading, at);
    $("sentence").textContent = text;
    $("patches").setAttribute("aria-label", `${state.picture.name}. ${text}`);
  };
  const drawHeads = (state) => {
    const { first: reading, isShared } = state;
    if (!reading || !hasLayers(reading.card)) return;
    const at = shown(state);
    heads.draw(reading, { ...at, width: inner($("heads-panel")), isShared, ink: colour("--soft"), accent: colour("--accent") });
    $("heads-query").textContent = queryName(reading.query(at.query), reading.grid);
    $("heads-scale").textContent = isShared ? "" : "(now each map is brightest at its own maximum)";
    $("distance").replaceChildren(drawDistances(reading, at, { hover: headOver, pick: headPick }));
    drawEquations($("equations"), reading, at);
  };
  const drawStrip = (state) => {
    const { first: reading } = state;
    if (!reading || !hasLayers(reading.card)) return;
    strip.draw(reading, { ...state, width: inner($("strip-panel")), ink: colour("--soft"), accent: colour("--accent") });
  };
  const chosen = ["first", "view", "layer", "head", "query", "resized"];
  store.on([...chosen, "hover", "opacity", "edits", "picture"], drawPicture);
  store.on([...chosen, "hover", "isShared"], drawHeads);
  store.on(chosen, drawStrip);
}

/** The value under the pointer, in words. */
function readout(reading, { pointed, query }, over) {
  const at = pointed ?? (typeof query === "number" ? query : null);
  if (at === null || !reading.patches) return "";
  const where = place(reading, at);
  if (!reading.kept[at]) return `${where}: dropped`;
  if (over?.kind !== "values") return where;
  return `${where}: ${valueText(over, at)}`;
}

function drawLegend(over) {
  const hasScale = over?.kind === "values";
  $("legend-bar").hidden = !hasScale;
  if (!over) $("legend-text").textContent = "";
  else if (!hasScale) $("legend-text").textContent = "like colours: alike patches";
  else {
    const context = sizedContext($("legend-bar"), 128, 10);
    const image = new ImageData(256, 1);
    for (let i = 0; i < 256; i++) image.data.set([...TABLE.subarray(3 * i, 3 * i + 3), 255], 4 * i);
    context.drawImage(asCanvas(image), 0, 0, 128, 10);
    $("legend-text").textContent = legendText(over);
  }
}

function connectAnswers(store) {
  const on = {
    hover: (layer) => store.set({ hover: layer === null ? null : { layer } }),
    pick: (layer) => store.set({ layer, hover: null }),
  };
  store.on(["first", "firstOriginal"], ({ first, firstOriginal, layer }) => {
    if (!first) return;
    drawAnswers($("answers"), first, firstOriginal);
    $("change-text").textContent = changeText(first, firstOriginal);
    $("answers-key").hidden = first === firstOriginal;
    $("settled").textContent = settledText(first);
    drawLayers($("layers"), first, layer, on);
  });
  store.on(["first", "layer", "hover"], (state) => {
    const { first, layer } = shown(state);
    if (!first || !hasLayers(first.card)) return;
    markLayer($("layers"), state.layer);
    $("layer-title").textContent = layer === 0 ? "Before the first layer" : `After layer ${layer}`;
    drawLayerAnswer($("layer-answers"), first, Math.min(layer, first.layers));
  });
}

/** Filters and positions of the model; positions are linked with the query. */
function connectWeights(store, card) {
  const patch = ({ down, across }) => {
    const [rows, columns] = store.state.first.grid;
    return Math.floor(down * rows) * columns + Math.floor(across * columns);
  };
  const tiles = new PositionTiles($("positions"), {
    hover: (at) => store.state.first && store.set({ hover: at && { query: patch(at) } }),
    pick: (at) => store.state.first && store.set({ query: patch(at), hover: null }),
  });
  const drawTiles = (state) => {
    const { positions } = card(state.model);
    $("positions-panel").hidden = !positions;
    if (!positions) return;
    const { query, first } = shown(state);
    const [rows, columns] = first?.grid ?? positions.grid;
    const at = typeof query === "number" ? { down: (Math.floor(query / columns) + 0.5) / rows, across: ((query % columns) + 0.5) / columns } : null;
    tiles.draw(card(state.model), Math.min(inner($("positions-panel")), 420), at, colour("--accent"));
  };
  const drawKernels = ({ model }) => {
    const { filters } = card(model);
    $("filters-panel").hidden = !filters;
    if (!filters) return;
    const { count, share } = drawFilters($("filters"), card(model), inner($("filters-panel")));
    $("filters-text").textContent = `The first ${count} patterns (principal components) that the model compares each patch with; grey is zero. Together they explain ${percent(share, 0)} of the variance of its embedding filters. Smooth waves and edges show a trained model; noise shows one that has learnt little.`;
  };
  store.on(["model", "query", "hover", "first", "resized"], drawTiles);
  store.on(["model", "resized"], drawKernels);
  drawTiles(store.state);
  drawKernels(store.state);
}

function connectDownloads(store) {
  for (const format of ["svg", "png"]) {
    $(`save-${format}`).addEventListener("click", async () => {
      try {
        if (store.state.first) await download(store.state, format);
      } catch (error) {
        store.set({ notice: { text: `The figure cannot be saved: ${error.message}.` } });
      }
    });
  }
  $("copy-link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      $("copy-link").textContent = "Copied";
    } catch {
      $("copy-link").textContent = "Copy it from the address bar";
    }
    setTimeout(() => ($("copy-link").textContent = "Copy link"), 2000);
  });
  $("help-button").addEventListener("click", () => $("help").showModal());
  $("keys").replaceChildren(...KEYS.map(({ shown: keys, what }) => element("tr", {}, element("th", { scope: "row" }, keys), element("td", {}, what))));
}

start().catch((error) => {
  $("error").hidden = false;
  $("error-text").textContent = `The page could not start: ${error.message}. Is the server still running?`;
  $("retry").hidden = true;
  $("dismiss").hidden = true;
});
