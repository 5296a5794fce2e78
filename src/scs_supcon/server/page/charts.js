// Charts in the style of the report: intervals, and a curve.
import { create, percent, svg } from "./common.js";

// `rows`: [{name, value, low, high}], shares between 0 and 1.
export function intervals(rows, title) {
  const low = Math.max(0, Math.floor(Math.min(...rows.map((row) => row.low)) * 20 - 0.5) / 20);
  const high = Math.min(1, Math.ceil(Math.max(...rows.map((row) => row.high)) * 20 + 0.5) / 20);
  const width = 420;
  const x = (value) => 8 + ((value - low) / (high - low || 1)) * (width - 16);
  const body = rows.map((row) => {
    const drawing = svg("svg", { viewBox: `0 0 ${width} 24`, class: "whiskers" });
    drawing.setAttribute("aria-hidden", "true");
    drawing.append(
      svg("line", { x1: x(low), x2: x(high), y1: 12, y2: 12, class: "rule" }),
      svg("line", { x1: x(row.low), x2: x(row.high), y1: 12, y2: 12, class: "whisker" }),
      svg("circle", { cx: x(row.value), cy: 12, r: 5.5, class: "same" }),
    );
    return create(
      "tr", {}, create("th", { scope: "row", textContent: row.name }),
      create("td", { className: "plot" }, drawing),
      create("td", { className: "number" }, create("b", { textContent: percent(row.value, 1) })),
      create("td", {
        className: "number small",
        textContent: `${percent(row.low, 1)} to ${percent(row.high, 1)}`,
      }),
    );
  });
  return create(
    "table", { className: "intervals" }, create("caption", { textContent: title }),
    create("tbody", {}, ...body),
  );
}

// `points`: [[x, y]], y a share between 0 and 1.
export function curve(points, xTitle) {
  const [width, height, left, bottom] = [360, 170, 44, 34];
  const xs = points.map((point) => point[0]);
  const ys = points.map((point) => point[1]);
  const [lowX, highX] = [Math.min(...xs), Math.max(1, ...xs)];
  const low = Math.max(0, Math.min(...ys) - 0.03);
  const high = Math.min(1, Math.max(...ys) + 0.03);
  const x = (value) => left + ((value - lowX) / (highX - lowX)) * (width - left - 12);
  const y = (value) => 10 + ((high - value) / (high - low || 1)) * (height - bottom - 10);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "axis-chart curve", role: "img" });
  const last = points.at(-1);
  drawing.append(
    svg("title", {}, `${percent(points[0][1], 1)} at the start, ${percent(last[1], 1)} after ${last[0]}`),
    svg("line", { x1: left, x2: width - 12, y1: height - bottom, y2: height - bottom, class: "rule" }),
    svg("text", { x: left, y: height - 18, class: "tick" }, String(lowX)),
    svg("text", { x: width - 14, y: height - 18, class: "tick", "text-anchor": "end" }, String(highX)),
    svg("text", { x: (left + width) / 2, y: height - 4, class: "tick" }, xTitle),
  );
  for (const value of [low, high]) {
    drawing.append(
      svg("text", { x: left - 6, y: y(value) + 4, class: "tick", "text-anchor": "end" }, percent(value, 1)),
    );
  }
  if (points.length > 1) {
    drawing.append(svg("polyline", { class: "line", points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
  }
  drawing.append(svg("circle", { cx: x(last[0]), cy: y(last[1]), r: 4.5, class: "same" }));
  return drawing;
}
