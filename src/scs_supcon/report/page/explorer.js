// The maps of the fields, and the panel with the neighbours of the selected image.
const MARGIN = 18;
const coloured = data.classes.length <= data.colours.length;
const maps = [];
let selected = 0;
let hovered = -1;

class FieldMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.field = data.fields[Number(canvas.dataset.field)];
    canvas.addEventListener("pointermove", (event) => this.hover(this.imageUnder(event, 14)));
    canvas.addEventListener("pointerleave", () => this.hover(-1));
    canvas.addEventListener("click", (event) => {
      const index = this.imageUnder(event, 24);
      if (index >= 0) select(index, false);
    });
    canvas.addEventListener("focus", () => this.hover(selected));
    canvas.addEventListener("blur", () => this.hover(-1));
    canvas.addEventListener("keydown", (event) => this.handleKey(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  position(index) {
    const side = this.canvas.clientWidth - 2 * MARGIN;
    return [MARGIN + this.field.x[index] * side, MARGIN + (1 - this.field.y[index]) * side];
  }

  imageUnder(event, reach) {
    let best = -1;
    let least = reach * reach;
    for (let i = 0; i < data.names.length; i++) {
      const [x, y] = this.position(i);
      const distance = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  handleKey(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Enter" || event.key === " ") {
      select(hovered < 0 ? selected : hovered, false);
    } else if (event.key === "Escape") return this.hover(-1);
    else if (steps[event.key]) this.hover(this.nextTowards(steps[event.key]));
    else return;
    event.preventDefault();
  }

  // The nearest image in a direction; sideways distance counts twice.
  nextTowards([right, down]) {
    const start = hovered < 0 ? selected : hovered;
    const [x, y] = this.position(start);
    let best = start;
    let least = Infinity;
    for (let i = 0; i < data.names.length; i++) {
      const [px, py] = this.position(i);
      const ahead = (px - x) * right + (py - y) * down;
      const aside = Math.abs((px - x) * down) + Math.abs((py - y) * right);
      if (i === start || ahead <= 0 || aside > 2 * ahead) continue;
      if (ahead + 2 * aside < least) [best, least] = [i, ahead + 2 * aside];
    }
    return best;
  }

  hover(index) {
    if (index === hovered) return;
    hovered = index;
    for (const map of maps) map.draw();
    const tip = byId("tip");
    tip.hidden = index < 0;
    if (index < 0) return;
    showImage(tip.querySelector("img"), index);
    tip
      .querySelector("p")
      .replaceChildren(
        ...breakable(labelOf(index)), createElement("br"), describePrediction(index),
      );
    byId("announcement").textContent = labelOf(index) + ", " + describePrediction(index);
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = this.position(index);
    const left = box.left + x + (x > box.width / 2 ? -tip.offsetWidth - 14 : 14);
    const limit = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = scrollX + Math.max(8, Math.min(left, limit)) + "px";
    tip.style.top = scrollY + box.top + y + 14 + "px";
  }

  draw() {
    const size = this.canvas.clientWidth;
    const scale = devicePixelRatio || 1;
    this.canvas.width = this.canvas.height = size * scale;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const subject = hovered < 0 ? selected : hovered;
    const radius = Math.max(2.4, Math.min(4.5, size / 12 / Math.sqrt(data.names.length)));
    // Images of the subject's class come last, so that nothing hides them.
    for (const sameClass of [false, true]) {
      for (let i = 0; i < data.names.length; i++) {
        if ((data.labels[i] === data.labels[subject]) !== sameClass) continue;
        context.globalAlpha = sameClass ? 1 : coloured ? 0.6 : 0.4;
        this.drawMark(context, i, sameClass ? radius + 1 : radius, {
          plain: coloured
            ? data.colours[data.labels[i]]
            : colour(sameClass ? "--accent" : "--soft"),
          wrong: colour("--other"),
        });
      }
    }
    context.globalAlpha = 1;
    this.drawLinks(context, subject, colour("--ink"));
    if (coloured) this.drawNames(context, colour("--card"), colour("--ink"));
  }

  drawMark(context, index, radius, colours) {
    const [x, y] = this.position(index);
    context.beginPath();
    if (isWrong(index)) {
      context.strokeStyle = colours.wrong;
      context.lineWidth = 2;
      context.moveTo(x - radius, y - radius);
      context.lineTo(x + radius, y + radius);
      context.moveTo(x + radius, y - radius);
      context.lineTo(x - radius, y + radius);
      return context.stroke();
    }
    context.arc(x, y, radius, 0, 7);
    context.fillStyle = context.strokeStyle = colours.plain;
    context.lineWidth = 1.5;
    return hasPrediction(index) ? context.fill() : context.stroke();
  }

  // A ring around the subject, and lines to its neighbours in this field.
  drawLinks(context, subject, colour) {
    const [x, y] = this.position(subject);
    context.strokeStyle = colour;
    context.lineWidth = 0.75;
    for (const neighbour of this.field.neighbours[subject]) {
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(...this.position(neighbour));
      context.stroke();
    }
    context.lineWidth = 2.5;
    context.beginPath();
    context.arc(x, y, 8, 0, 7);
    context.stroke();
  }

  drawNames(context, halo, colour) {
    context.font = "600 13px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    data.classes.forEach((name, index) => {
      const points = data.labels.flatMap((l, i) => (l === index ? [this.position(i)] : []));
      if (!points.length) return;
      const median = (axis) => points.map((p) => p[axis]).sort((a, b) => a - b)[points.length >> 1];
      const text = name.length > 18 ? name.slice(0, 17) + "…" : name;
      const half = context.measureText(text).width / 2 + 4;
      const x = Math.max(half, Math.min(this.canvas.clientWidth - half, median(0)));
      context.strokeStyle = halo;
      context.lineWidth = 4;
      context.strokeText(text, x, median(1));
      context.fillStyle = colour;
      context.fillText(text, x, median(1));
    });
  }
}

// The images that Previous and Next step through.
function filteredImages() {
  const label = Number(byId("pick-class").value);
  const errorsOnly = byId("pick-wrong").checked;
  return data.labels.flatMap((l, i) =>
    (label < 0 || l === label) && (!errorsOnly || isWrong(i)) ? [i] : [],
  );
}

// `scroll`: the image was selected elsewhere on the page, or by a button that is about to vanish.
function select(index, scroll) {
  const panel = byId("selected");
  const wasInside = panel.contains(document.activeElement);
  selected = index;
  hovered = -1;
  byId("tip").hidden = true;
  showImage(byId("subject"), index);
  byId("subject-text").replaceChildren(
    createElement("b", {}, ...breakable(labelOf(index))),
    createElement("br"),
    describePrediction(index),
    createElement(
      "span", { className: "name" }, ...breakable(data.names[index]), ` (${data.splits[index]})`,
    ),
  );
  document.querySelectorAll("[data-neighbours]").forEach((list) => {
    const field = data.fields[Number(list.dataset.neighbours)];
    const neighbours = field.neighbours[index];
    const isOtherClass = (other) => data.labels[other] !== data.labels[index];
    const sameClass = neighbours.filter((other) => !isOtherClass(other));
    byId("same-class-" + list.dataset.neighbours).textContent =
      sameClass.length + " of " + neighbours.length + " of the same class";
    list.replaceChildren(
      ...neighbours.map((other, rank) =>
        thumbnail(other, field.similarities[index][rank].toFixed(2), isOtherClass(other)),
      ),
    );
  });
  showPosition();
  for (const map of maps) map.draw();
  if (!scroll) return;
  panel.focus({ preventScroll: true });
  if (!wasInside) panel.scrollIntoView({ block: "start" });
}

function showPosition() {
  const list = filteredImages();
  const index = list.indexOf(selected);
  byId("position").textContent = list.length
    ? (index < 0 ? "" : index + 1 + " of ") + list.length
    : "none";
}

function step(by) {
  const list = filteredImages();
  if (!list.length) return;
  const index = list.indexOf(selected);
  const next =
    index < 0 ? (by > 0 ? 0 : list.length - 1) : (index + by + list.length) % list.length;
  select(list[next], false);
}

if (data.names.length) {
  byId("pick-class").append(
    ...data.classes.map((name, index) =>
      createElement("option", { value: index, textContent: name }),
    ),
  );
  for (const id of ["pick-class", "pick-wrong"]) {
    byId(id).addEventListener("change", () =>
      filteredImages().includes(selected) ? showPosition() : step(1),
    );
  }
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  for (const canvas of document.querySelectorAll("canvas")) maps.push(new FieldMap(canvas));
  // Start with the error of the highest confidence.
  const errorConfidence = (i) => (isWrong(i) ? data.confidences[i] : -1);
  const worst = data.labels.reduce(
    (best, _, i) => (errorConfidence(i) > errorConfidence(best) ? i : best), 0,
  );
  select(worst, false);

  const redraw = () => maps.forEach((map) => map.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Print in light colours.
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    redraw();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    redraw();
  });
}
