// The confusion matrix: cells that are not empty, a cursor, and the images behind a cell.
const SVG = "http://www.w3.org/2000/svg";
const CELL = 16;
const READABLE = 60; // classes; more of them have no room for names
const ROOMY = 14; // classes; so few have room for counts in the cells
const LONG = 20; // letters of a name
const narrow = matchMedia("(max-width: 50rem)");

function draw(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const counts = new Map(data.confusion.cells.map(([r, c, n]) => [r * data.classes.length + c, n]));
const count = (r, c) => counts.get(r * data.classes.length + c) ?? 0;
let shown = [];
let cursor = [0, 0];

function classesToShow() {
  const byName = data.classes.map((_, at) => at);
  const order = byId("order").value === "name" ? byName : data.confusion.order;
  const most = Number(byId("shown")?.value ?? 0);
  if (!most) return order;
  const errors = byName.map(() => 0);
  for (const [r, c, n] of data.confusion.cells) if (r !== c) (errors[r] += n), (errors[c] += n);
  const worst = new Set([...byName].sort((a, b) => errors[b] - errors[a]).slice(0, most));
  return order.filter((at) => worst.has(at));
}

function drawMatrix() {
  shown = classesToShow();
  const place = new Map(shown.map((at, position) => [at, position]));
  const side = shown.length;
  const named = side <= (narrow.matches ? ROOMY : READABLE);
  // Few classes would give huge cells: let names take a fixed share of a fixed width instead.
  const cell = Math.max(CELL, 420 / side);
  const longest = Math.max(...shown.map((at) => Math.min(data.classes[at].length, LONG)));
  const left = named ? 12 + 8 * longest : 4;
  const top = side <= ROOMY ? 22 : 4;
  const svg = draw("svg", {
    viewBox: `0 0 ${left + side * cell + 4} ${top + side * cell + 4}`,
    tabindex: 0,
    role: "application",
    "aria-label": "Confusion matrix: arrow keys move between cells",
  });
  const grid = draw("g", { transform: `translate(${left} ${top})` });
  grid.append(draw("rect", { class: "ground", width: side * cell, height: side * cell }));
  for (const [r, c, n] of data.confusion.cells) {
    if (!place.has(r) || !place.has(c)) continue;
    const share = n / data.confusion.totals[r];
    grid.append(
      draw("rect", {
        class: r === c ? "right" : "wrong",
        x: place.get(c) * cell + 0.5, y: place.get(r) * cell + 0.5,
        width: cell - 1, height: cell - 1,
        // Even a single mistake must be seen.
        opacity: (r === c ? 0.08 + 0.82 * share : 0.3 + 0.7 * Math.min(1, 2 * share)).toFixed(2),
      }),
    );
  }
  const write = (words, letters, attributes) => {
    const text = draw("text", attributes);
    text.textContent = words.length > letters ? words.slice(0, letters - 1) + "…" : words;
    svg.append(text);
  };
  shown.forEach((at, position) => {
    const middle = (position + 0.5) * cell;
    const name = data.classes[at];
    if (named) {
      write(name, LONG, { x: left - 6, y: top + middle + 4, "text-anchor": "end", "data-row": at });
    }
    if (side <= ROOMY) {
      write(name, Math.floor(cell / 8), { x: left + middle, y: 15, "text-anchor": "middle" });
    }
  });
  svg.append(grid);
  if (side <= ROOMY) {
    for (const [r, c, n] of data.confusion.cells) {
      write(String(n), 9, {
        x: left + (place.get(c) + 0.5) * cell, y: top + (place.get(r) + 0.5) * cell + 5,
        "text-anchor": "middle",
        class: r === c && n > data.confusion.totals[r] / 2 ? "on" : "count",
      });
    }
  }
  const frame = draw("rect", { class: "cursor", width: cell, height: cell, visibility: "hidden" });
  grid.append(frame);
  byId("matrix").replaceChildren(svg);
  cursor = [0, 0];

  const go = (row, column) => {
    cursor = [row, column].map((at) => Math.max(0, Math.min(side - 1, at)));
    frame.setAttribute("x", cursor[1] * cell);
    frame.setAttribute("y", cursor[0] * cell);
    frame.setAttribute("visibility", "visible");
    for (const text of svg.querySelectorAll("text")) {
      text.classList.toggle("now", Number(text.dataset.row) === shown[cursor[0]]);
    }
    tellCell(shown[cursor[0]], shown[cursor[1]]);
  };
  const under = (event) => {
    const box = grid.firstChild.getBoundingClientRect();
    const at = (start, size, here) => Math.floor(((here - start) / size) * side);
    return [at(box.top, box.height, event.clientY), at(box.left, box.width, event.clientX)];
  };
  const inside = ([row, column]) => Math.min(row, column) >= 0 && Math.max(row, column) < side;
  for (const kind of ["pointermove", "click"]) {
    svg.addEventListener(kind, (event) => inside(under(event)) && go(...under(event)));
  }
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && go(...cursor));
  svg.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!way[event.key]) return;
    event.preventDefault();
    go(cursor[0] + way[event.key][0], cursor[1] + way[event.key][1]);
  });
}

let told = "";
function tellCell(row, column) {
  if (told === row + " " + column) return;
  told = row + " " + column;
  const [n, total] = [count(row, column), data.confusion.totals[row]];
  const of = n + " of " + total + " images of ";
  byId("cell").replaceChildren(
    make("b", { textContent: data.classes[row] }),
    row === column ? " named rightly: " : " taken for ",
    ...(row === column ? [] : [make("b", { textContent: data.classes[column] }), ": "]),
    of + "the class",
  );
  const here = (i) => data.labels[i] === row && data.predictions[i] === column;
  const images = data.splits.flatMap((split, i) =>
    split === data.confusion.split && here(i) ? [i] : [],
  );
  const seen = images.sort((a, b) => data.chances[b] - data.chances[a]).slice(0, 8);
  byId("cell-images").replaceChildren(
    ...seen.map((i) => thumb(i, Math.round(100 * data.chances[i]) + " % sure", false)),
  );
}

for (const button of document.querySelectorAll("[data-cell]")) {
  button.addEventListener("click", () => {
    tellCell(...button.dataset.cell.split(" ").map(Number));
    byId("cell").scrollIntoView({ block: "nearest" });
  });
}
byId("order").value = data.classes.length > 12 ? "together" : "name";
narrow.addEventListener("change", drawMatrix);
for (const id of ["order", "shown"]) byId(id)?.addEventListener("change", drawMatrix);
drawMatrix();
