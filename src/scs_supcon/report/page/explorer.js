// The maps of both fields, and the panel with the neighbours of the chosen image.
const PALETTE = [
  "#4477aa", "#ee8866", "#228833", "#aa3377", "#66ccee",
  "#bbaa22", "#8866cc", "#777777", "#44bb99", "#cc6688",
];
const MARGIN = 18;
const few = data.classes.length <= PALETTE.length;
const maps = [];
let chosen = 0;
let pointed = -1;

class FieldMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.field = data.fields[Number(canvas.dataset.field)];
    canvas.addEventListener("pointermove", (event) => this.point(this.under(event, 14)));
    canvas.addEventListener("pointerleave", () => this.point(-1));
    canvas.addEventListener("click", (event) => {
      const found = this.under(event, 24);
      if (found >= 0) choose(found, false);
    });
    canvas.addEventListener("focus", () => this.point(chosen));
    canvas.addEventListener("blur", () => this.point(-1));
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  place(index) {
    const side = this.canvas.clientWidth - 2 * MARGIN;
    return [MARGIN + this.field.x[index] * side, MARGIN + (1 - this.field.y[index]) * side];
  }

  under(event, reach) {
    let best = -1;
    let least = reach * reach;
    for (let i = 0; i < data.names.length; i++) {
      const [x, y] = this.place(i);
      const distance = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Enter" || event.key === " ") choose(pointed < 0 ? chosen : pointed, false);
    else if (event.key === "Escape") return this.point(-1);
    else if (way[event.key]) this.point(this.towards(way[event.key]));
    else return;
    event.preventDefault();
  }

  // The nearest image in a direction; what lies aside counts for less than what lies ahead.
  towards([right, down]) {
    const from = pointed < 0 ? chosen : pointed;
    const [x, y] = this.place(from);
    let best = from;
    let least = Infinity;
    for (let i = 0; i < data.names.length; i++) {
      const [px, py] = this.place(i);
      const ahead = (px - x) * right + (py - y) * down;
      const aside = Math.abs((px - x) * down) + Math.abs((py - y) * right);
      if (i === from || ahead <= 0 || aside > 2 * ahead) continue;
      if (ahead + 2 * aside < least) [best, least] = [i, ahead + 2 * aside];
    }
    return best;
  }

  point(index) {
    if (index === pointed) return;
    pointed = index;
    for (const map of maps) map.draw();
    const tip = byId("tip");
    tip.hidden = index < 0;
    if (index < 0) return;
    show(tip.querySelector("img"), index);
    tip.querySelector("p").replaceChildren(...breakable(label(index)), make("br"), verdict(index));
    byId("said").textContent = label(index) + ", " + verdict(index);
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = this.place(index);
    const left = box.left + x + (x > box.width / 2 ? -tip.offsetWidth - 14 : 14);
    const most = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = scrollX + Math.max(8, Math.min(left, most)) + "px";
    tip.style.top = scrollY + box.top + y + 14 + "px";
  }

  draw() {
    const size = this.canvas.clientWidth;
    const scale = devicePixelRatio || 1;
    this.canvas.width = this.canvas.height = size * scale;
    const ink = this.canvas.getContext("2d");
    ink.scale(scale, scale);
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const subject = pointed < 0 ? chosen : pointed;
    const mine = data.labels[subject];
    const radius = Math.max(2.4, Math.min(4.5, size / 12 / Math.sqrt(data.names.length)));
    const classmate = (i) => data.labels[i] === mine;
    // Classmates of the subject come last, so that nothing hides them.
    for (const last of [false, true]) {
      for (let i = 0; i < data.names.length; i++) {
        if (classmate(i) !== last) continue;
        ink.globalAlpha = last ? 1 : few ? 0.6 : 0.4;
        this.mark(ink, i, last ? radius + 1 : radius, {
          plain: few ? PALETTE[data.labels[i]] : last ? colour("--accent") : colour("--soft"),
          wrong: colour("--other"),
        });
      }
    }
    ink.globalAlpha = 1;
    this.links(ink, subject, colour("--ink"));
    if (few) this.names(ink, colour("--card"), colour("--ink"));
  }

  mark(ink, index, radius, colours) {
    const [x, y] = this.place(index);
    ink.beginPath();
    if (wrong(index)) {
      ink.strokeStyle = colours.wrong;
      ink.lineWidth = 2;
      ink.moveTo(x - radius, y - radius);
      ink.lineTo(x + radius, y + radius);
      ink.moveTo(x + radius, y - radius);
      ink.lineTo(x - radius, y + radius);
      return ink.stroke();
    }
    ink.arc(x, y, radius, 0, 7);
    ink.fillStyle = ink.strokeStyle = colours.plain;
    ink.lineWidth = 1.5;
    return asked(index) ? ink.fill() : ink.stroke();
  }

  // A ring around the image in question, and lines to its neighbours in this field.
  links(ink, subject, colour) {
    const [x, y] = this.place(subject);
    ink.strokeStyle = colour;
    ink.lineWidth = 0.75;
    for (const near of this.field.near[subject]) {
      ink.beginPath();
      ink.moveTo(x, y);
      ink.lineTo(...this.place(near));
      ink.stroke();
    }
    ink.lineWidth = 2.5;
    ink.beginPath();
    ink.arc(x, y, 8, 0, 7);
    ink.stroke();
  }

  names(ink, halo, colour) {
    ink.font = "600 13px system-ui, sans-serif";
    ink.textAlign = "center";
    ink.textBaseline = "middle";
    ink.lineJoin = "round";
    data.classes.forEach((name, at) => {
      const points = data.labels.flatMap((l, i) => (l === at ? [this.place(i)] : []));
      if (!points.length) return;
      const middle = (axis) => points.map((p) => p[axis]).sort((a, b) => a - b)[points.length >> 1];
      const short = name.length > 18 ? name.slice(0, 17) + "…" : name;
      const half = ink.measureText(short).width / 2 + 4;
      const x = Math.max(half, Math.min(this.canvas.clientWidth - half, middle(0)));
      ink.strokeStyle = halo;
      ink.lineWidth = 4;
      ink.strokeText(short, x, middle(1));
      ink.fillStyle = colour;
      ink.fillText(short, x, middle(1));
    });
  }
}

// The images that Previous and Next step through.
function wanted() {
  const only = Number(byId("pick-class").value);
  const mistakes = byId("pick-wrong").checked;
  return data.labels.flatMap((l, i) =>
    (only < 0 || l === only) && (!mistakes || wrong(i)) ? [i] : [],
  );
}

// `go`: the choice was made elsewhere on the page, or by a button that is about to vanish.
function choose(index, go) {
  const panel = byId("chosen");
  const inside = panel.contains(document.activeElement);
  chosen = index;
  pointed = -1;
  byId("tip").hidden = true;
  show(byId("subject"), index);
  byId("subject-words").replaceChildren(
    make("b", {}, ...breakable(label(index))),
    make("br"),
    verdict(index),
    make("span", { className: "name" }, ...breakable(data.names[index]), ` (${data.splits[index]})`),
  );
  document.querySelectorAll("[data-near]").forEach((list) => {
    const field = data.fields[Number(list.dataset.near)];
    const mates = field.near[index].filter((near) => data.labels[near] === data.labels[index]);
    byId("mates-" + list.dataset.near).textContent =
      mates.length + " of " + field.near[index].length + " of its class";
    list.replaceChildren(
      ...field.near[index].map((near, rank) => {
        const strange = data.labels[near] !== data.labels[index];
        return thumb(near, field.like[index][rank].toFixed(2), strange);
      }),
    );
  });
  tellPlace();
  for (const map of maps) map.draw();
  if (!go) return;
  panel.focus({ preventScroll: true });
  if (!inside) panel.scrollIntoView({ block: "start" });
}

function tellPlace() {
  const list = wanted();
  const at = list.indexOf(chosen);
  byId("place").textContent = list.length ? (at < 0 ? "" : at + 1 + " of ") + list.length : "none";
}

function step(by) {
  const list = wanted();
  if (!list.length) return;
  const at = list.indexOf(chosen);
  const next = at < 0 ? (by > 0 ? 0 : list.length - 1) : (at + by + list.length) % list.length;
  choose(list[next], false);
}

if (data.names.length) {
  byId("pick-class").append(
    ...data.classes.map((name, at) => make("option", { value: at, textContent: name })),
  );
  for (const id of ["pick-class", "pick-wrong"]) {
    byId(id).addEventListener("change", () => (wanted().includes(chosen) ? tellPlace() : step(1)));
  }
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  for (const canvas of document.querySelectorAll("canvas")) maps.push(new FieldMap(canvas));
  // Begin with the mistake that the model was surest of.
  const sure = (i) => (wrong(i) ? data.chances[i] : -1);
  choose(data.labels.reduce((best, _, i) => (sure(i) > sure(best) ? i : best), 0), false);

  const redraw = () => maps.forEach((map) => map.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is white: print in the light colours.
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    redraw();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    redraw();
  });
}
