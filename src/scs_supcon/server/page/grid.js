// A list of images of any length: only the visible rows exist in the document.
import { create, crisp, imageUrl } from "./common.js";

const CELL = 124; // pixels; at least
const TEXT = 42;
const GAP = 8;
const SPARE = 2; // rows above and below the visible ones

export class ImageGrid {
  // `describe(image)` returns {label, note, className}; `changed` is called after every selection.
  constructor(element, describe, changed) {
    this.element = element;
    this.describe = describe;
    this.changed = changed;
    this.images = [];
    this.selected = new Set();
    this.cursor = 0;
    this.anchor = 0;
    this.cells = new Map();
    this.space = create("div", { className: "grid-space" });
    element.append(this.space);
    element.addEventListener("scroll", () => this.draw(), { passive: true });
    element.addEventListener("keydown", (event) => this.handleKey(event));
    this.space.addEventListener("click", (event) => this.handleClick(event));
    new ResizeObserver(() => this.layout()).observe(element);
  }

  get current() {
    return this.images[this.cursor];
  }

  // The selected images, or the one under the cursor.
  get chosen() {
    if (this.selected.size) return [...this.selected];
    return this.current === undefined ? [] : [this.current];
  }

  show(images) {
    const before = this.current;
    this.images = images;
    const visible = new Set(images);
    for (const image of this.selected) if (!visible.has(image)) this.selected.delete(image);
    const position = images.indexOf(before);
    this.cursor = position >= 0 ? position : Math.min(this.cursor, Math.max(0, images.length - 1));
    this.layout();
    this.changed();
  }

  layout() {
    const width = this.element.clientWidth - GAP;
    if (width <= 0) return;
    this.columns = Math.max(2, Math.floor(width / (CELL + GAP)));
    this.side = width / this.columns - GAP;
    this.row = this.side + TEXT + GAP;
    this.space.style.height = Math.ceil(this.images.length / this.columns) * this.row + GAP + "px";
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
    this.draw();
  }

  draw() {
    if (!this.row) return;
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.row) - SPARE) * this.columns;
    const rows = Math.ceil(this.element.clientHeight / this.row) + 2 * SPARE + 1;
    const last = Math.min(this.images.length, first + rows * this.columns);
    for (const [position, cell] of this.cells) {
      if (position < first || position >= last) {
        cell.remove();
        this.cells.delete(position);
      }
    }
    for (let position = first; position < last; position++) {
      if (!this.cells.has(position)) this.cells.set(position, this.makeCell(position));
    }
    this.mark();
  }

  makeCell(position) {
    const image = this.images[position];
    const { label, note, className, name } = this.describe(image);
    const thumb = crisp(create("img", { alt: "", decoding: "async" }));
    thumb.src = imageUrl(image);
    const cell = create(
      "div", { className: `cell ${className}`, id: `cell-${position}`, title: name },
      thumb,
      create("span", { textContent: label }),
      create("small", { textContent: note }),
    );
    cell.dataset.position = position;
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-setsize", this.images.length);
    cell.setAttribute("aria-posinset", position + 1);
    cell.setAttribute("aria-label", `${label}, ${note || name}`);
    const row = Math.floor(position / this.columns);
    cell.style.width = this.side + "px";
    cell.style.height = this.row - GAP + "px";
    cell.style.setProperty("--side", this.side + "px");
    cell.style.transform =
      `translate(${GAP + (position % this.columns) * (this.side + GAP)}px, ` +
      `${GAP + row * this.row}px)`;
    this.space.append(cell);
    return cell;
  }

  mark() {
    for (const [position, cell] of this.cells) {
      cell.setAttribute("aria-selected", this.selected.has(this.images[position]));
      cell.classList.toggle("cursor", position === this.cursor);
    }
    this.element.setAttribute("aria-activedescendant", `cell-${this.cursor}`);
  }

  handleClick(event) {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    const position = Number(cell.dataset.position);
    if (event.shiftKey) {
      const [from, to] = [this.anchor, position].sort((a, b) => a - b);
      for (const image of this.images.slice(from, to + 1)) this.selected.add(image);
    } else {
      this.toggle(position);
      this.anchor = position;
    }
    this.cursor = position;
    this.mark();
    this.changed();
  }

  toggle(position) {
    const image = this.images[position];
    if (image === undefined) return;
    if (!this.selected.delete(image)) this.selected.add(image);
  }

  handleKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = this.columns * Math.max(1, Math.floor(this.element.clientHeight / this.row));
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns,
      PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity,
    };
    if (event.key in steps) {
      const from = this.cursor;
      this.move(from + steps[event.key]);
      if (event.shiftKey) {
        const [low, high] = [from, this.cursor].sort((a, b) => a - b);
        for (const image of this.images.slice(low, high + 1)) this.selected.add(image);
      }
    } else if (event.key === " ") {
      this.toggle(this.cursor);
      this.anchor = this.cursor;
    } else if (event.key === "Escape") this.selected.clear();
    else return;
    event.preventDefault();
    this.mark();
    this.changed();
  }

  move(position) {
    this.cursor = Math.max(0, Math.min(this.images.length - 1, position));
    const top = Math.floor(this.cursor / this.columns) * this.row;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.row > scrollTop + clientHeight) {
      this.element.scrollTop = top + this.row + GAP - clientHeight;
    }
    this.draw();
  }
}
