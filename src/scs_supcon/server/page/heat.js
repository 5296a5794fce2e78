// The image as the model sees it, with the regions that speak for the class.
import { create } from "./common.js";

let shown = true; // kept from image to image

export class HeatView {
  constructor(source, label) {
    this.values = null;
    this.label = label;
    this.canvas = create("canvas", { className: "view" });
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "The image");
    this.image = new Image();
    this.image.addEventListener("load", () => this.draw());
    this.image.src = source;
    this.element = create("figure", { className: "subject-view" }, this.canvas);
  }

  // `values`: rows of numbers from 0 to 1, or null.
  show(values) {
    if (!values) return;
    this.values = values;
    const text = `The image with the regions that speak for ${this.label}`;
    this.canvas.setAttribute("aria-label", text);
    const box = create("input", { type: "checkbox", checked: shown });
    box.addEventListener("change", () => {
      shown = box.checked;
      this.draw();
    });
    this.element.append(
      create("figcaption", {}, create("label", { className: "check" }, box, "Show why")),
    );
    if (this.image.complete) this.draw();
  }

  draw() {
    const side = Math.max(224, this.image.naturalWidth);
    this.canvas.width = this.canvas.height = side;
    const context = this.canvas.getContext("2d");
    context.imageSmoothingEnabled = this.image.naturalWidth >= 48;
    context.drawImage(this.image, 0, 0, side, side);
    if (!this.values || !shown) return;
    const rows = this.values.length;
    const columns = this.values[0].length;
    // Dim what does not matter; the map is enlarged smoothly.
    const small = create("canvas", { width: columns, height: rows });
    const pixels = new ImageData(columns, rows);
    this.values.flat().forEach((value, i) => {
      pixels.data.set([16, 20, 30, 205 * (1 - Math.min(1, value)) ** 1.3], 4 * i);
    });
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    const x = side / columns / 2;
    const y = side / rows / 2;
    // Edge cells are stretched to the border, so that it is not brighter.
    context.drawImage(small, 0.5, 0.5, columns - 1, rows - 1, x, y, side - 2 * x, side - 2 * y);
    context.drawImage(small, 0.5, 0, columns - 1, 0.5, x, 0, side - 2 * x, y);
    context.drawImage(small, 0.5, rows - 0.5, columns - 1, 0.5, x, side - y, side - 2 * x, y);
    context.drawImage(small, 0, 0, 0.5, rows, 0, 0, x, side);
    context.drawImage(small, columns - 0.5, 0, 0.5, rows, side - x, 0, x, side);
  }
}
