/** A second model on the same picture: the same view, linked with the first by place, depth and head. */
import { drawAnswers, drawLayers, shortName } from "./answers.js";
import { $ } from "../dom.js";
import { isEdited } from "./edits.js";
import { HeadGrid } from "./head_grid.js";
import { largest } from "./maths.js";
import { PatchCanvas } from "./patch_canvas.js";
import { hasLayers, overlay } from "./reading.js";
import { atSamePlace } from "./resolution.js";
import { sentence } from "./sentences.js";

export function connectComparison(store, card, { shown, colour, inner }) {
  const pick = (choice) => store.set({ ...choice, hover: null });
  const first = () => store.state.first;
  const back = (patch) => atSamePlace(patch, store.state.second.grid, first().grid);
  const canvas = new PatchCanvas($("second-patches"), {
    hover: (patch) => store.set({ hover: patch === null || !first()?.patches ? null : { pointed: back(patch) } }),
    pick: (patch) => first()?.patches && pick({ query: back(patch) }),
  });
  const heads = new HeadGrid($("second-heads"), {
    hover: (at) => store.set({ hover: at && { ...firstPlace(at), view: "head" } }),
    pick: (at) => pick({ ...firstPlace(at), view: "head" }),
  });
  /** The layer and head of the first model that this layer and head are shown with. */
  const firstPlace = ({ layer, head }) => {
    const { layers, heads: count } = card(store.state.model);
    const depth = layers === store.state.second.layers ? layer : Math.round((layer / store.state.second.layers) * layers);
    return { layer: Math.max(depth, 1), head: Math.min(head, Math.max(count - 1, 0)) };
  };
  const draw = (state) => {
    const { first: one, second: reading, other, edits } = state;
    $("second-panel").hidden = !other;
    $("main").classList.toggle("comparing", Boolean(other));
    if (!other) return;
    $("second-title").textContent = `The same picture in ${card(other).name}`;
    if (!reading || !one || reading.card.id !== other) {
      $("second-text").textContent = "Computing…";
      return;
    }
    const at = secondPlace(shown(state), one, reading);
    $("second-text").textContent = compared(one, reading, edits);
    const width = Math.min($("second-patches").parentElement.clientWidth, 300);
    const query = hasLayers(reading.card) ? reading.query(at.query) : null;
    canvas.draw(reading, { width, over: overlay(reading, at), opacity: state.opacity, query, hovered: at.pointed, edits });
    $("second-sentence").textContent = hasLayers(reading.card) ? sentence(reading, at) : "This model has no attention to show.";
    $("second-heads").hidden = $("second-layers").hidden = !hasLayers(reading.card);
    if (!hasLayers(reading.card)) return;
    const panel = inner($("second-panel"));
    heads.draw(reading, { ...at, width: panel, isShared: state.isShared, ink: colour("--soft"), accent: colour("--accent") });
  };
  store.on(["other", "edits", "first", "second", "view", "layer", "head", "query", "hover", "opacity", "isShared", "resized"], draw);
  store.on(["first", "firstOriginal", "second", "secondOriginal", "layer"], ({ first: one, firstOriginal, second, secondOriginal, layer }) => {
    if (!one || !second) return;
    [$("first-name").textContent, $("second-name").textContent] = [one.card.name, second.card.name];
    drawAnswers($("first-answers"), one, firstOriginal);
    drawAnswers($("second-answers"), second, secondOriginal);
    drawLayers($("first-layers"), one, layer, { hover: () => {}, pick: (at) => pick({ layer: at }) });
    const beside = { hover: () => {}, pick: (at) => pick({ layer: firstPlace({ layer: at, head: 0 }).layer }) };
    drawLayers($("second-layers"), second, secondPlace({ layer, head: 0, query: "class" }, one, second).layer, beside);
  });
}

/** Layer, head and query of the second model that stand beside those of the first. */
function secondPlace(at, first, second) {
  if (!hasLayers(second.card) || !first.patches) return { ...at, query: second.prefix ? "class" : "mean" };
  const layer = first.layers === second.layers ? at.layer : Math.round((at.layer / first.layers) * second.layers);
  const move = (patch) => (patch === undefined ? undefined : atSamePlace(patch, first.grid, second.grid));
  return { ...at, layer, head: Math.min(at.head, second.heads - 1), query: move(at.query), pointed: move(at.pointed) };
}

function compared(one, two, edits) {
  const [[a], [b]] = [largest(one.final, 1), largest(two.final, 1)];
  const names = [shortName(one.className(a.index)), shortName(two.className(b.index))];
  const said = names[0] === names[1] ? `Both answer “${names[0]}”.` : `${one.card.name} answers “${names[0]}”, ${two.card.name} “${names[1]}”.`;
  const fits = edits.drop.length === two.patches;
  return isEdited(edits) && !fits ? `${said} The edits do not fit this model’s grid; it sees the original picture.` : said;
}
