// The page "Data": find doubtful labels and fix them.
import {
  announce, breakable, byId, create, crisp, guarded, imageUrl, isTyping, percent, request,
} from "./common.js";
import { ImageGrid } from "./grid.js";
import { LassoMap } from "./map.js";

const KEYS = "1234567890";
const UNSURE = 0.5; // confidence below this is low
let data;
let map;
let originals;

const grid = new ImageGrid(byId("grid"), describe, selectionChanged);
const labelName = (label) => (label < 0 ? "not used" : data.classes[label]);
const isCorrected = (image) => data.labels[image] !== originals[image];
// The same image with another label: there is no suggestion, somebody must compare the two.
const isContradicted = (image) =>
  data.copy[image] >= 0 && data.labels[image] !== data.labels[data.copy[image]];
const hasSuggestion = (image) => data.suggested[image] >= 0 && !isCorrected(image);
const isSuspected = (image) => hasSuggestion(image) || isContradicted(image);
const isWrong = (image) =>
  data.prediction[image] >= 0 && data.labels[image] >= 0 &&
  data.prediction[image] !== data.labels[image];

const SHOWN = {
  all: () => true,
  suspected: isSuspected,
  wrong: isWrong,
  correct: (image) => data.prediction[image] >= 0 && data.prediction[image] === data.labels[image],
  duplicate: (image) => data.duplicate[image],
  unsure: (image) => data.confidence[image] !== null && data.confidence[image] < UNSURE,
  corrected: isCorrected,
  unused: (image) => data.labels[image] < 0,
};
// Images without a score come last.
const SORT_KEYS = {
  suspicion: (image) => -(data.suspicion[image] ?? -1),
  boundary: (image) => (data.margin[image] === null ? Infinity : Math.abs(data.margin[image])),
  label_probability: (image) => data.label_probability[image] ?? Infinity,
  confidence: (image) => data.confidence[image] ?? Infinity,
  difference: (image) => -(data.difference[image] ?? -1),
};

function describe(image) {
  const other = isContradicted(image) ? `copy: ${labelName(data.labels[data.copy[image]])}` : "";
  const suggested = hasSuggestion(image) ? `→ ${labelName(data.suggested[image])}` : other;
  const corrected = isCorrected(image) ? `was ${labelName(originals[image])}` : "";
  const predicted = isWrong(image) ? `predicted ${labelName(data.prediction[image])}` : "";
  const note = corrected || suggested || predicted;
  const kinds = [
    isCorrected(image) && "corrected", suggested && "suspected", data.labels[image] < 0 && "unused",
  ];
  return {
    label: labelName(data.labels[image]), note, name: data.names[image],
    className: kinds.filter(Boolean).join(" "),
  };
}

function filtered() {
  const label = Number(byId("class").value);
  const split = byId("split").value;
  const accepts = SHOWN[byId("show").value];
  const images = [];
  for (let image = 0; image < data.names.length; image++) {
    if (label >= 0 && data.labels[image] !== label) continue;
    if (split && data.splits[image] !== split) continue;
    if (accepts(image)) images.push(image);
  }
  const key = SORT_KEYS[byId("sort").value];
  if (key) {
    const keys = new Map(images.map((image) => [image, key(image)]));
    images.sort((a, b) => keys.get(a) - keys.get(b) || a - b);
  }
  return images;
}

function showImages() {
  const images = filtered();
  grid.show(images);
  byId("count").textContent =
    `${images.length.toLocaleString()} of ${data.names.length.toLocaleString()} images`;
  map?.draw();
}

function selectionChanged() {
  if (!data) return;
  const count = grid.selected.size;
  byId("selection").textContent = count
    ? `${count.toLocaleString()} selected`
    : "Nothing selected: actions change the image with the frame.";
  showFocus();
  showPalette();
  map?.draw();
}

function showFocus() {
  const image = grid.current;
  if (image === undefined) return byId("focus").replaceChildren();
  const probability = (value) => (value === null ? "–" : percent(value, 1));
  const facts = [
    ["label", labelName(data.labels[image])],
    ["predicted", data.prediction[image] < 0 ? "–" : labelName(data.prediction[image])],
    ["confidence", probability(data.confidence[image])],
    ["probability of the label", probability(data.label_probability[image])],
    ["margin at the boundary", data.margin[image]?.toFixed(3) ?? "–"],
    ["split", data.splits[image]],
  ];
  const view = crisp(create("img", { alt: data.names[image], src: imageUrl(image, 320) }));
  byId("focus").replaceChildren(
    view,
    create(
      "div", {},
      create(
        "dl", { className: "terms" },
        ...facts.flatMap(([name, value]) => [
          create("dt", { textContent: name }), create("dd", {}, ...breakable(value)),
        ]),
      ),
      create("p", { className: "small name" }, ...breakable(data.names[image])),
    ),
  );
}

// The classes of the keys: all of them if there are at most ten, else the likely ones.
function paletteClasses() {
  if (data.classes.length <= KEYS.length) return data.classes.map((_, index) => index);
  const image = grid.current;
  if (image === undefined) return [];
  const likely = [data.suggested[image], data.prediction[image], data.labels[image]];
  const near = recent.filter((label) => !likely.includes(label));
  return [...new Set([...likely, ...near].filter((label) => label >= 0))].slice(0, 9);
}
const recent = [];

// Classes that are named by a digit have its key.
function keyOf(label, position) {
  const digits = data.classes.length <= KEYS.length && data.classes.every((c) => /^\d$/.test(c));
  return digits ? data.classes[label] : KEYS[position];
}

function showPalette() {
  const items = paletteClasses().map((label, position) => {
    const button = create(
      "button", { type: "button" }, create("kbd", { textContent: keyOf(label, position) }),
      create("span", {}, ...breakable(data.classes[label])),
    );
    button.addEventListener("click", guarded(() => relabel(grid.chosen, data.classes[label])));
    return create("li", {}, button);
  });
  byId("palette").replaceChildren(...items);
}

async function relabel(images, label) {
  if (!images.length) return;
  apply(await request("/api/corrections", { images, label }));
  const index = data.classes.indexOf(label);
  if (index >= 0) recent.unshift(...recent.splice(recent.indexOf(index), 1), index);
  announce(`${images.length} labelled ${label ?? "not used"}`);
}

// Each image gets the class that was suggested for it; one request per class.
async function acceptSuggestions() {
  const groups = groupBy(grid.chosen.filter(hasSuggestion), (image) => data.suggested[image]);
  for (const [label, images] of groups) {
    apply(await request("/api/corrections", { images, label: data.classes[label] }), false);
  }
  grid.selected.clear();
  showImages();
}

function groupBy(values, key) {
  const groups = new Map();
  for (const value of values) {
    if (!groups.has(key(value))) groups.set(key(value), []);
    groups.get(key(value)).push(value);
  }
  return groups;
}

const undo = guarded(async () => apply(await request("/api/corrections/undo", {})));

function apply(answer, show = true) {
  for (const [image, label] of Object.entries(answer.changed)) data.labels[Number(image)] = label;
  data.corrections = answer.corrections;
  byId("undo").disabled = !answer.can_undo;
  if (!show) return;
  grid.selected.clear();
  // Keep the images in their places, so that the next one is under the cursor.
  const kept = new Set(filtered());
  const images = grid.images.filter((image) => kept.has(image));
  if (images.length === kept.size) {
    grid.images = images;
    grid.cursor = Math.min(grid.cursor, Math.max(0, images.length - 1));
    grid.layout();
    selectionChanged();
    byId("count").textContent =
      `${images.length.toLocaleString()} of ${data.names.length.toLocaleString()} images`;
  } else showImages();
}

addEventListener("keydown", (event) => {
  if (!data || isTyping(event)) return;
  const key = event.key.toLowerCase();
  const label = paletteClasses().find((label, position) => keyOf(label, position) === key);
  if (label !== undefined) guarded(() => relabel(grid.chosen, data.classes[label]))();
  else if (key === "x") guarded(() => relabel(grid.chosen, null))();
  else if (key === "a") guarded(acceptSuggestions)();
  else if (key === "z") undo();
  else return;
  event.preventDefault();
});
byId("accept").addEventListener("click", guarded(acceptSuggestions));
byId("unuse").addEventListener("click", guarded(() => relabel(grid.chosen, null)));
byId("undo").addEventListener("click", undo);
byId("select-all").addEventListener("click", () => {
  for (const image of grid.images) grid.selected.add(image);
  grid.mark();
  selectionChanged();
});
byId("select-none").addEventListener("click", () => {
  grid.selected.clear();
  grid.mark();
  selectionChanged();
});
byId("other-class").addEventListener("change", guarded(async (event) => {
  const label = event.target.value;
  event.target.value = "";
  if (label) await relabel(grid.chosen, label);
}));
byId("filters").addEventListener("change", () => data && showImages());
byId("filters").addEventListener("submit", (event) => event.preventDefault());

guarded(async () => {
  data = await request("/api/data");
  originals = data.originals;
  const options = () => data.classes.map((name, value) => create("option", { value, textContent: name }));
  byId("class").append(...options());
  byId("other-class").append(
    ...data.classes.map((name) => create("option", { value: name, textContent: name })),
  );
  byId("undo").disabled = !data.can_undo;
  const wanted = new URLSearchParams(location.search).get("show");
  if (wanted in SHOWN) byId("show").value = wanted;
  showImages();
  const { points } = await request("/api/data/map");
  const kind = (image) =>
    grid.selected.has(image) ? "selected" : isSuspected(image) ? "marked" : "plain";
  map = new LassoMap(byId("map"), points, kind, (images, add) => {
    if (!add) grid.selected.clear();
    const shown = new Set(grid.images);
    for (const image of images) if (shown.has(image)) grid.selected.add(image);
    const first = grid.images.findIndex((image) => grid.selected.has(image));
    if (first >= 0) grid.move(first);
    grid.mark();
    selectionChanged();
  });
  map.draw();
})();
