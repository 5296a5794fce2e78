// The page "Predict": images in, classes, neighbours and reasons out.
import {
  announce, breakable, byId, create, crisp, guarded, imageUrl, percent, request, showError,
} from "./common.js";
import { similarityAxis } from "./axis.js";
import { HeatView } from "./heat.js";

const PARALLEL = 4;
const entries = [];
let waiting = [];
let active = 0;
let selected = null;
let explains = true; // whether the model has heat maps

guarded(async () => {
  const model = await request("/api/model");
  explains = model.heat_map;
  const accuracy = model.metrics?.accuracy;
  const facts = [
    `${model.classes.length} classes`, model.encoder,
    accuracy === undefined ? "" : `${percent(accuracy, 1)} accuracy`,
    `${model.training_images.toLocaleString()} training images`,
  ];
  byId("model").textContent = facts.filter(Boolean).join(" · ");
})();

function add(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/") || !file.type);
  if (!images.length) return showError(new Error("there is no image among these files"));
  byId("results").hidden = false;
  document.body.classList.add("has-results");
  const first = entries.length;
  for (const file of images) {
    const entry = { file, url: URL.createObjectURL(file), state: "waiting" };
    entry.item = rowOf(entry);
    entries.push(entry);
    waiting.push(entry);
    byId("list").append(entry.item);
  }
  select(entries[first]);
  work();
}

function rowOf(entry) {
  const image = crisp(create("img", { src: entry.url, alt: "" }));
  image.addEventListener("error", () => image.removeAttribute("src"), { once: true });
  entry.verdict = create("span", { className: "verdict", textContent: "…" });
  entry.button = create(
    "button", { type: "button", className: "result-row" }, image,
    create(
      "span", { className: "result-text" }, entry.verdict,
      create("small", {}, ...breakable(entry.file.name)),
    ),
  );
  entry.button.addEventListener("click", () => select(entry));
  return create("li", {}, entry.button);
}

function work() {
  while (active < PARALLEL && waiting.length) {
    active += 1;
    predict(waiting.shift()).finally(() => {
      active -= 1;
      work();
    });
  }
  summarise();
}

async function predict(entry) {
  try {
    const answer = await request("/api/predict", entry.file);
    entry.prediction = answer.predictions[0];
    entry.state = "done";
  } catch (error) {
    entry.reason = error.message.replace(/^image (?=is|has|cannot)/, "This file ");
    entry.state = "failed";
  }
  const { prediction } = entry;
  const text = prediction
    ? prediction.unknown ? "unknown" : `${prediction.label} ${percent(prediction.probability)}`
    : "cannot be read";
  entry.verdict.replaceChildren(...breakable(text));
  entry.verdict.classList.toggle("bad", !prediction || prediction.unknown);
  if (entry === selected && entry.state === "failed") showFailure(entry);
}

function summarise() {
  const done = entries.filter((entry) => entry.state === "done");
  const unknown = done.filter((entry) => entry.prediction.unknown).length;
  const failed = entries.filter((entry) => entry.state === "failed").length;
  const parts = [`${done.length} of ${entries.length} images`];
  if (unknown) parts.push(`${unknown} unknown`);
  if (failed) parts.push(`${failed} unreadable`);
  byId("summary").textContent = parts.join(" · ");
}

const select = guarded(async (entry) => {
  selected?.button.removeAttribute("aria-current");
  selected = entry;
  entry.button.setAttribute("aria-current", "true");
  const panel = byId("detail");
  panel.setAttribute("aria-busy", "true");
  if (entry.state === "failed") return showFailure(entry);
  try {
    entry.answer ??= await request("/api/explain?k=12", entry.file);
  } catch (error) {
    entry.state = "failed";
    entry.reason = error.message.replace(/^image (?=is|has|cannot)/, "This file ");
    if (entry === selected) showFailure(entry);
    return;
  }
  if (entry === selected) showDetail(entry);
});

function showFailure(entry) {
  byId("detail").removeAttribute("aria-busy");
  byId("detail").replaceChildren(
    create("h2", { textContent: "This image cannot be read" }),
    create("p", { className: "caution", textContent: entry.reason }),
    create("p", { className: "small" }, ...breakable(entry.file.name)),
  );
  announce("This image cannot be read");
}

function showDetail(entry) {
  const { prediction, threshold, boundary, common, style, view } = entry.answer;
  const panel = byId("detail");
  panel.removeAttribute("aria-busy");
  const title = prediction.unknown
    ? create("h2", { className: "bad", textContent: "Unknown" })
    : create("h2", {}, ...breakable(prediction.label));
  const reason = prediction.unknown
    ? `Its similarity to the nearest class, ${prediction.nearest}, is ` +
      `${prediction.similarity.toFixed(2)}, below the ${threshold.toFixed(2)} that this class ` +
      `needs. Among the known classes, ${prediction.label} is the most probable one.`
    : `${percent(prediction.probability, 1)} probability; similarity to ${prediction.nearest} ` +
      `${prediction.similarity.toFixed(2)}, needed ${threshold.toFixed(2)}.`;
  const image = new HeatView(view, prediction.label);
  showHeat(entry, image);
  panel.replaceChildren(
    create(
      "div", { className: "detail-head" }, image.element,
      create(
        "div", {}, title, create("p", { textContent: reason }), topClasses(prediction),
        create("p", { className: "small name" }, ...breakable(entry.file.name)),
      ),
    ),
    create("h3", { textContent: "Most similar training images" }),
    similarityAxis({ neighbours: common, label: prediction.label, boundary, prediction, threshold }),
    thumbnails(common, prediction.label),
  );
  if (style.length) {
    panel.append(
      create("h3", { textContent: "Nearest in style" }),
      create("p", {
        className: "small",
        textContent: "Style is what varies within a class, such as pose, light or background.",
      }),
      thumbnails(style, prediction.label),
    );
  }
  announce(`${prediction.unknown ? "Unknown" : prediction.label}. ${reason}`);
}

// The heat map takes longer than the rest and follows when it is ready.
const showHeat = guarded(async (entry, image) => {
  if (!explains) return;
  entry.heat ??= (await request("/api/heat_map", entry.file)).heat_map;
  image.show(entry.heat);
});

function topClasses(prediction) {
  // Objects list keys such as "7" first, so the order of the answer is lost.
  const top = Object.entries(prediction.top).sort((a, b) => b[1] - a[1]);
  const rows = top.map(([name, value]) =>
    create(
      "tr", {}, create("th", { scope: "row" }, ...breakable(name)),
      create("td", {}, create("meter", { min: 0, max: 1, value, title: percent(value, 2) })),
      create("td", { className: "number", textContent: percent(value, 1) }),
    ),
  );
  return create(
    "table", { className: "top" },
    create("caption", { className: "hidden", textContent: "Most probable classes" }),
    create("tbody", {}, ...rows),
  );
}

function thumbnails(neighbours, label) {
  const items = neighbours.map((neighbour) => {
    const image = create("img", { alt: "", loading: "lazy" });
    if (neighbour.id !== null) crisp(image).src = imageUrl(neighbour.id);
    const figure = create(
      "figure", { className: neighbour.label === label ? "thumb" : "thumb other-class" }, image,
      create(
        "figcaption", { title: neighbour.image }, create("span", {}, ...breakable(neighbour.label)),
        create("small", { textContent: neighbour.similarity.toFixed(2) }),
      ),
    );
    return create("li", {}, figure);
  });
  return create("ul", { className: "strip neighbours-strip" }, ...items);
}

for (const id of ["files", "folder"]) {
  byId(id).addEventListener("change", (event) => {
    add(event.target.files);
    event.target.value = "";
  });
}
byId("clear").addEventListener("click", () => {
  for (const entry of entries) URL.revokeObjectURL(entry.url);
  entries.length = 0;
  waiting = [];
  selected = null;
  byId("list").replaceChildren();
  byId("detail").replaceChildren();
  byId("results").hidden = true;
  document.body.classList.remove("has-results");
});
addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length) add(files);
});
addEventListener("dragover", (event) => {
  event.preventDefault();
  byId("drop").classList.add("over");
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) byId("drop").classList.remove("over");
});
addEventListener("drop", guarded(async (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
  const folders = items.map((item) => item.webkitGetAsEntry()).filter((e) => e?.isDirectory);
  const files = items
    .filter((item) => !item.webkitGetAsEntry()?.isDirectory)
    .map((item) => item.getAsFile());
  for (const folder of folders) files.push(...(await filesOf(folder)));
  add(files);
}));

// All files in a dropped folder and its subfolders.
async function filesOf(folder) {
  const reader = folder.createReader();
  const files = [];
  for (;;) {
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!batch.length) return files;
    for (const entry of batch) {
      if (entry.isDirectory) files.push(...(await filesOf(entry)));
      else files.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
    }
  }
}
