// The map of the embeddings; drawing around points selects them.
import { colour, onSchemeChange } from "./common.js";

const MARGIN = 12;

export class LassoMap {
  // `points`: [x, y] or null for each image; `kind(image)`: "plain", "marked", "selected" or "".
  constructor(canvas, points, kind, selected) {
    Object.assign(this, { canvas, points, kind, selected, path: [] });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.path = [[event.offsetX, event.offsetY]];
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.path.length) return;
      this.path.push([event.offsetX, event.offsetY]);
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => this.finish(event.shiftKey));
    canvas.addEventListener("pointercancel", () => (this.path = []));
    new ResizeObserver(() => this.draw()).observe(canvas);
    onSchemeChange(() => this.draw());
  }

  position([x, y]) {
    const side = this.canvas.clientWidth - 2 * MARGIN;
    return [MARGIN + x * side, MARGIN + (1 - y) * side];
  }

  finish(add) {
    const path = this.path;
    this.path = [];
    if (path.length > 4) {
      const inside = [];
      this.points.forEach((point, image) => {
        if (point && this.kind(image) && contains(path, this.position(point))) inside.push(image);
      });
      this.selected(inside, add);
    }
    this.draw();
  }

  draw() {
    const size = this.canvas.clientWidth;
    const scale = devicePixelRatio || 1;
    this.canvas.width = this.canvas.height = size * scale;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const styles = {
      plain: [colour("--soft"), 0.4, 2.2],
      marked: [colour("--other"), 0.95, 3.2],
      selected: [colour("--accent"), 1, 4],
    };
    for (const kind of Object.keys(styles)) {
      const [fill, alpha, radius] = styles[kind];
      context.fillStyle = fill;
      context.globalAlpha = alpha;
      this.points.forEach((point, image) => {
        if (!point || this.kind(image) !== kind) return;
        const [x, y] = this.position(point);
        context.beginPath();
        context.arc(x, y, radius, 0, 7);
        context.fill();
      });
    }
    context.globalAlpha = 1;
    if (this.path.length < 2) return;
    context.beginPath();
    this.path.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fillStyle = colour("--band");
    context.fill();
    context.strokeStyle = colour("--accent");
    context.lineWidth = 1.5;
    context.stroke();
  }
}

// Whether a point lies inside a polygon: a ray to the right crosses its border an odd number of times.
function contains(path, [x, y]) {
  let inside = false;
  for (let i = 0, j = path.length - 1; i < path.length; j = i++) {
    const [xi, yi] = path[i];
    const [xj, yj] = path[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}
