/** Equations 1 to 4 of the paper with the shapes and numbers of this picture. */
import { element, percent } from "../dom.js";
import { entropy, largest } from "./maths.js";
import { queryName } from "./reading.js";
import { shortName } from "./answers.js";

/** Text with `_x` as a subscript and `^x` as a superscript; braces hold several characters. */
function formula(text) {
  const parts = text.split(/([_^](?:\{[^}]*\}|.))/u).filter(Boolean);
  return parts.map((part) => {
    if (!/^[_^]/.test(part)) return part;
    const inner = part.slice(1).replace(/^\{|\}$/g, "");
    return element(part[0] === "_" ? "sub" : "sup", {}, inner);
  });
}

/** Draw the strip for the chosen layer, head and query. */
export function drawEquations(holder, reading, { layer, head, query }) {
  const { card, patches, n, prefix, layers } = reading;
  const attending = Math.max(layer, 1);
  const from = reading.query(query);
  const seen = reading.tokensSeen(attending, head, from);
  const tokens = `${n} × ${card.width}`;
  const bits = Math.log2(n).toFixed(2);
  const [first] = largest(reading.final, 1);
  const logits = reading.trace.logits;
  const start = prefix ? "z_0 = [x_{class}; x_p^1E; …; x_p^NE] + E_{pos}" : "z_0 = [x_p^1E; …; x_p^NE] + E_{pos}";
  const cards = [
    equation("1", "Patches become tokens", start, [
      ["patches N", `${patches} (${reading.grid[0]} × ${reading.grid[1]})`],
      ...(card.kind === "hybrid" ? [] : [["E", `${3 * card.patch ** 2} × ${card.width}`]]),
      ["z_0", tokens],
      ["mean norm of z_0", reading.mean(reading.norms(0)).toFixed(2)],
    ], card.kind === "hybrid" ? "In a hybrid, patches are cut from the feature map of a ResNet." : ""),
    equation("2", `Tokens look at each other: layer ${attending}`, `z′_{${attending}} = MSA(LN(z_{${attending - 1}})) + z_{${attending - 1}}`, [
      ["heads", `${card.heads}, each ${n} × ${n}`],
      [`head ${head + 1}, largest share`, percent(largest(seen, 1)[0].value)],
      ["its entropy", `${entropy(seen).toFixed(2)} of ${bits} bits`],
      ["attention distance", `${reading.distances[(attending - 1) * reading.heads + head].toFixed(1)} pixels`],
    ], `From ${queryName(from, reading.grid)}. No entropy: one token gets all. ${bits} bits: all get the same.`),
    equation("3", `Each token is changed by itself: layer ${attending}`, `z_{${attending}} = MLP(LN(z′_{${attending}})) + z′_{${attending}}`, [
      ["MLP", `${card.width} → ${card.mlp} → ${card.width}`],
      [`z_{${attending}}`, tokens],
      [`mean norm of z_{${attending}}`, reading.mean(reading.norms(attending)).toFixed(2)],
      [`change by layer ${attending}`, `${reading.mean(reading.updates(attending)).toFixed(2)} (norm)`],
    ]),
    equation("4", "One token becomes the answer", prefix ? `y = LN(z_{${layers}}^0)` : `y = mean of LN(z_{${layers}})`, [
      ["y", prefix > 1 ? `${prefix} × ${card.width}` : `${card.width}`],
      ["classes K", `${card.classes}`],
      ["largest logit", `${logits[first.index].toFixed(2)} (${shortName(reading.className(first.index))})`],
      ["its probability", percent(first.value)],
    ]),
  ];
  holder.replaceChildren(...cards);
}

function equation(number, title, text, rows, note = "") {
  const pairs = rows.flatMap(([name, value]) => [element("dt", {}, formula(name)), element("dd", {}, value)]);
  return element(
    "article",
    { class: "equation", "data-equation": number },
    element("h3", {}, element("span", { class: "eq" }, `Eq. ${number}`), ` ${title}`),
    element("p", { class: "formula" }, formula(text)),
    element("dl", {}, pairs),
    note ? element("p", { class: "note" }, note) : null,
  );
}
