// The confusion matrix: non-empty cells, a cursor, and the images of the current cell.
const SVG = "http://www.w3.org/2000/svg";
const CELL = 16;
const MOST_NAMED = 60; // with more classes there is no room for names
const MOST_COUNTED = 14; // with more classes there is no room for counts in the cells
const LONGEST_NAME = 20; // characters
const narrow = matchMedia("(max-width: 50rem)");

function createSvg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const counts = new Map(data.confusion.cells.map(([r, c, n]) => [r * data.classes.length + c, n]));
const count = (r, c) => counts.get(r * data.classes.length + c) ?? 0;
let shownClasses = [];
let cursor = [0, 0];

function classesToShow() {
  const byName = data.classes.map((_, index) => index);
  const order = byId("order").value === "name" ? byName : data.confusion.order;
  const limit = Number(byId("shown")?.value ?? 0);
  if (!limit) return order;
  const errors = byName.map(() => 0);
  for (const [r, c, n] of data.confusion.cells) if (r !== c) (errors[r] += n), (errors[c] += n);
  const worst = new Set([...byName].sort((a, b) => errors[b] - errors[a]).slice(0, limit));
  return order.filter((index) => worst.has(index));
}

function drawMatrix() {
  shownClasses = classesToShow();
  const position = new Map(shownClasses.map((index, place) => [index, place]));
  const side = shownClasses.length;
  const named = side <= (narrow.matches ? MOST_COUNTED : MOST_NAMED);
  const counted = side <= MOST_COUNTED;
  // With few classes the cells grow to a fixed total width.
  const cell = Math.max(CELL, 420 / side);
  const longest = Math.max(
    ...shownClasses.map((index) => Math.min(data.classes[index].length, LONGEST_NAME)),
  );
  const left = named ? 12 + 8 * longest : 4;
  const top = counted ? 22 : 4;
  const svg = createSvg("svg", {
    viewBox: `0 0 ${left + side * cell + 4} ${top + side * cell + 4}`,
    tabindex: 0,
    role: "application",
    "aria-label": "Confusion matrix: arrow keys move between cells",
  });
  const grid = createSvg("g", { transform: `translate(${left} ${top})` });
  grid.append(createSvg("rect", { class: "ground", width: side * cell, height: side * cell }));
  for (const [r, c, n] of data.confusion.cells) {
    if (!position.has(r) || !position.has(c)) continue;
    const share = n / data.confusion.totals[r];
    grid.append(
      createSvg("rect", {
        class: r === c ? "correct" : "wrong",
        x: position.get(c) * cell + 0.5, y: position.get(r) * cell + 0.5,
        width: cell - 1, height: cell - 1,
        // A single error must be visible.
        opacity: (r === c ? 0.08 + 0.82 * share : 0.3 + 0.7 * Math.min(1, 2 * share)).toFixed(2),
      }),
    );
  }
  const addText = (content, letters, attributes) => {
    const text = createSvg("text", attributes);
    text.textContent = content.length > letters ? content.slice(0, letters - 1) + "…" : content;
    svg.append(text);
  };
  shownClasses.forEach((index, place) => {
    const middle = (place + 0.5) * cell;
    const name = data.classes[index];
    if (named) {
      addText(name, LONGEST_NAME, {
        x: left - 6, y: top + middle + 4, "text-anchor": "end", "data-row": index,
      });
    }
    if (counted) {
      addText(name, Math.floor(cell / 8), { x: left + middle, y: 15, "text-anchor": "middle" });
    }
  });
  svg.append(grid);
  if (counted) {
    for (const [r, c, n] of data.confusion.cells) {
      addText(String(n), 9, {
        x: left + (position.get(c) + 0.5) * cell, y: top + (position.get(r) + 0.5) * cell + 5,
        "text-anchor": "middle",
        class: r === c && n > data.confusion.totals[r] / 2 ? "on-dark" : "count",
      });
    }
  }
  const frame = createSvg("rect", {
    class: "cursor", width: cell, height: cell, visibility: "hidden",
  });
  grid.append(frame);
  byId("matrix").replaceChildren(svg);
  cursor = [0, 0];

  const moveCursor = (row, column) => {
    cursor = [row, column].map((index) => Math.max(0, Math.min(side - 1, index)));
    frame.setAttribute("x", cursor[1] * cell);
    frame.setAttribute("y", cursor[0] * cell);
    frame.setAttribute("visibility", "visible");
    for (const text of svg.querySelectorAll("text")) {
      text.classList.toggle("current", Number(text.dataset.row) === shownClasses[cursor[0]]);
    }
    showCell(shownClasses[cursor[0]], shownClasses[cursor[1]]);
  };
  const cellUnder = (event) => {
    const box = grid.firstChild.getBoundingClientRect();
    const index = (start, size, point) => Math.floor(((point - start) / size) * side);
    return [index(box.top, box.height, event.clientY), index(box.left, box.width, event.clientX)];
  };
  const isInside = ([row, column]) => Math.min(row, column) >= 0 && Math.max(row, column) < side;
  for (const kind of ["pointermove", "click"]) {
    svg.addEventListener(kind, (event) => {
      if (isInside(cellUnder(event))) moveCursor(...cellUnder(event));
    });
  }
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && moveCursor(...cursor));
  svg.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!steps[event.key]) return;
    event.preventDefault();
    moveCursor(cursor[0] + steps[event.key][0], cursor[1] + steps[event.key][1]);
  });
}

let currentCell = "";
function showCell(row, column) {
  if (currentCell === row + " " + column) return;
  currentCell = row + " " + column;
  const total = data.confusion.totals[row];
  byId("cell").replaceChildren(
    createElement("b", { textContent: data.classes[row] }),
    row === column ? " correct: " : " predicted as ",
    ...(row === column ? [] : [createElement("b", { textContent: data.classes[column] }), ": "]),
    count(row, column) + " of " + total + " images of the class",
  );
  const isInCell = (i) => data.labels[i] === row && data.predictions[i] === column;
  const images = data.splits.flatMap((split, i) =>
    split === data.confusion.split && isInCell(i) ? [i] : [],
  );
  images.sort((a, b) => data.confidences[b] - data.confidences[a]);
  byId("cell-images").replaceChildren(
    ...images.slice(0, 8).map((i) => thumbnail(i, confidence(i), false)),
  );
}

for (const button of document.querySelectorAll("[data-cell]")) {
  button.addEventListener("click", () => {
    showCell(...button.dataset.cell.split(" ").map(Number));
    byId("cell").scrollIntoView({ block: "nearest" });
  });
}
byId("order").value = data.classes.length > 12 ? "confusion" : "name";
narrow.addEventListener("change", drawMatrix);
for (const id of ["order", "shown"]) byId(id)?.addEventListener("change", drawMatrix);
drawMatrix();
