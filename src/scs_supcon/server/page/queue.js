// The page "Label queue": label the images that teach the model most.
import {
  announce, breakable, byId, create, crisp, guarded, imageUrl, isTyping, percent, request,
} from "./common.js";
import { curve } from "./charts.js";

let queue = { images: [] };
let classes = [];
let position = 0;
let sinceOrdered = 0;
const skipped = new Set();
const REORDER = 12; // labels after which the queue is ordered again

const load = guarded(async () => {
  if (!classes.length) ({ classes } = await request("/api/model"));
  queue = await request("/api/queue");
  queue.images = queue.images.filter((image) => !skipped.has(image.id));
  position = sinceOrdered = 0;
  show();
});

function show() {
  const done = queue.total - queue.waiting - queue.unreadable;
  byId("counts").textContent =
    `${done.toLocaleString()} of ${queue.total.toLocaleString()} images labelled` +
    (queue.unreadable ? `, ${queue.unreadable} unreadable` : "");
  byId("cards").replaceChildren(...queue.images.map(card));
  const figure = byId("curve");
  figure.querySelector("svg")?.remove();
  if (queue.curve.length) figure.append(curve(queue.curve, "new labels"));
  else figure.hidden = true;
  mark();
}

function card(image, index) {
  const buttons = image.top.map(([name, probability], key) => {
    const button = create(
      "button", { type: "button" }, create("kbd", { textContent: key + 1 }),
      create("span", {}, ...breakable(name)),
      create("small", { textContent: percent(probability) }),
    );
    button.addEventListener("click", () => label(index, name));
    return create("li", {}, button);
  });
  const others = create("select", {}, create("option", { value: "", textContent: "another class" }));
  others.setAttribute("aria-label", "Another class");
  others.append(...classes.map((name) => create("option", { value: name, textContent: name })));
  others.addEventListener("change", () => others.value && label(index, others.value));
  return create(
    "li", { className: "card", tabIndex: -1, title: image.image },
    crisp(create("img", { alt: image.image, src: imageUrl(image.id, 320), loading: "lazy" })),
    create("p", { className: "small", textContent: image.unknown ? "unknown to the model" : "" }),
    create("ol", { className: "palette" }, ...buttons), others,
  );
}

function mark() {
  [...byId("cards").children].forEach((element, index) => {
    element.classList.toggle("cursor", index === position);
    element.classList.toggle("done", Boolean(queue.images[index].done));
  });
}

const label = guarded(async (index, name) => {
  const image = queue.images[index];
  await request("/api/corrections", { images: [image.id], label: name });
  image.done = true;
  announce(`labelled ${name}`);
  sinceOrdered += 1;
  advance(index);
  if (sinceOrdered >= REORDER || queue.images.every((entry) => entry.done)) await load();
});

function advance(index) {
  position = index;
  while (position < queue.images.length - 1 && queue.images[position].done) position += 1;
  mark();
  byId("cards").children[position]?.scrollIntoView({ block: "nearest" });
}

const undo = guarded(async () => {
  await request("/api/corrections/undo", {});
  await load();
});

addEventListener("keydown", (event) => {
  const image = queue.images[position];
  if (isTyping(event) || !image) return;
  const key = event.key.toLowerCase();
  const choice = image.top[Number(key) - 1];
  if (choice && !image.done) label(position, choice[0]);
  else if (key === "s") {
    skipped.add(image.id);
    image.done = true;
    advance(position);
  } else if (key === "z") undo();
  else if (key === "arrowright") advance(Math.min(position + 1, queue.images.length - 1));
  else if (key === "arrowleft") {
    position = Math.max(0, position - 1);
    mark();
  } else return;
  event.preventDefault();
});
byId("undo").addEventListener("click", undo);
byId("more").addEventListener("click", load);
load();
