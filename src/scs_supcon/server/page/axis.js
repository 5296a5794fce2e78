// Similarities on one axis: each neighbour a mark, with the decision boundary and the class mean.
import { create, svg } from "./common.js";

const WIDTH = 640;
const HEIGHT = 104;
const LEFT = 16;
const RIGHT = 16;
const LINE = 66;

export function similarityAxis({ neighbours, label, boundary, prediction, threshold }) {
  const values = neighbours.map((neighbour) => neighbour.similarity);
  const marks = [prediction.similarity, threshold, ...values];
  if (boundary !== null) marks.push(boundary);
  const low = Math.max(-1, Math.min(...marks) - 0.05);
  const high = Math.min(1, Math.max(...marks) + 0.05);
  const x = (value) => LEFT + ((value - low) / (high - low)) * (WIDTH - LEFT - RIGHT);
  const drawing = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "axis-chart", role: "img",
  });
  const same = neighbours.filter((neighbour) => neighbour.label === label).length;
  const sentence =
    `${same} of the ${neighbours.length} most similar training images are ${label}` +
    (boundary === null
      ? "."
      : `; ${values.filter((value) => value >= boundary).length} lie above the decision ` +
        `boundary ${boundary.toFixed(2)}, where two images are as likely of one class as not.`);
  drawing.append(svg("title", {}, sentence));
  drawing.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: LINE, y2: LINE, class: "rule" }));
  for (const tick of ticks(low, high)) {
    drawing.append(
      svg("line", { x1: x(tick), x2: x(tick), y1: LINE - 3, y2: LINE + 3, class: "rule" }),
      svg("text", { x: x(tick), y: LINE + 18, class: "tick" }, tick.toFixed(1)),
    );
  }
  if (boundary !== null) {
    drawing.append(
      svg("rect", {
        x: x(boundary), y: 22, width: Math.max(0, x(high) - x(boundary)), height: LINE - 22,
        class: "above",
      }),
      svg("line", { x1: x(boundary), x2: x(boundary), y1: 22, y2: LINE + 6, class: "boundary" }),
      caption(x(boundary), 15, `boundary ${boundary.toFixed(2)}`, "boundary-name"),
    );
  }
  for (const neighbour of neighbours) {
    const own = neighbour.label === label;
    const mark = own
      ? svg("circle", { cx: x(neighbour.similarity), cy: LINE - 16, r: 5.5, class: "same" })
      : cross(x(neighbour.similarity), LINE - 16);
    mark.append(svg("title", {}, `${neighbour.label} ${neighbour.similarity.toFixed(3)}`));
    drawing.append(mark);
  }
  const at = x(prediction.similarity);
  drawing.append(
    svg("path", { d: `M${at} ${LINE + 24}l6 10h-12z`, class: "mean" }),
    svg("line", {
      x1: x(threshold), x2: x(threshold), y1: LINE + 22, y2: LINE + 37, class: "needed",
    }),
  );
  const legend = [
    ["●", `${label}`, "same-sign"], ["✕", "other classes", "other-sign"],
    ["▲", `mean similarity to ${prediction.nearest}: ${prediction.similarity.toFixed(2)}`, ""],
    ["┊", `needed: ${threshold.toFixed(2)}`, ""],
  ].map(([sign, text, name]) =>
    create("span", {}, create("b", { className: name, textContent: sign }), ` ${text}`),
  );
  return create(
    "figure", { className: "axis-figure" }, drawing,
    create("p", { className: "legend" }, ...legend),
    create("figcaption", { textContent: sentence }),
  );
}

function caption(x, y, text, name) {
  const anchor = x < 110 ? "start" : x > WIDTH - 110 ? "end" : "middle";
  const from = anchor === "start" ? LEFT : anchor === "end" ? WIDTH - RIGHT : x;
  return svg("text", { x: from, y, class: name, "text-anchor": anchor }, text);
}

function cross(x, y) {
  return svg("path", { d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10`, class: "different" });
}

function ticks(low, high) {
  const first = Math.ceil(low * 10);
  const count = Math.floor(high * 10) - first + 1;
  const step = Math.max(1, Math.ceil(count / 9));
  return Array.from({ length: Math.max(0, count) }, (_, i) => (first + i) / 10).filter(
    (_, i) => i % step === 0,
  );
}
