// How far observations lie from their references: bars of equal or of growing width.

import { choice, element, table } from "./elements.js";
import { count, metres } from "./quantities.js";

const [WIDTH, HEIGHT, FOOT] = [640, 200, 24];
const MARKED = [5, 50, 95];

function svg(name, attributes, ...children) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  one.append(...children);
  return one;
}

// Bins stand side by side in equal widths: of the logarithmic ones the edges have equal ratios.
function bars({ edges_m: edges, counts }, percentiles) {
  const most = Math.max(...counts);
  const width = WIDTH / counts.length;
  const drawing = svg("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT + FOOT}`, role: "img", "aria-label": "histogram of distances" });
  counts.forEach((rows, at) => {
    const height = (HEIGHT * rows) / most;
    const words = `${metres(edges[at])} to ${metres(edges[at + 1])}: ${count(rows)}`;
    drawing.append(
      svg("rect", { x: at * width, y: HEIGHT - height, width: Math.max(0.5, width - 1), height }, svg("title", {}, words)),
    );
  });
  for (const { percent, distance_m: distance } of percentiles.filter((one) => MARKED.includes(one.percent))) {
    const after = edges.findIndex((edge) => edge > distance);
    const at = after < 1 ? counts.length - 1 : after - 1;
    const x = width * (at + (distance - edges[at]) / (edges[at + 1] - edges[at]));
    drawing.append(svg("line", { class: "percentile", x1: x, x2: x, y1: 0, y2: HEIGHT }), svg("text", { x: Math.min(x + 3, WIDTH - 40), y: 12 }, `${percent} %`));
  }
  [0, counts.length >> 1, counts.length].forEach((at, place) => {
    const anchor = ["start", "middle", "end"][place];
    drawing.append(svg("text", { x: at * width, y: HEIGHT + 16, "text-anchor": anchor }, metres(edges[at])));
  });
  return drawing;
}

export function histogramOf(spread) {
  if (!spread.percentiles.length) return [element("p", {}, "No observation has a reference.")];
  const place = element("div");
  const scale = choice("logarithmic", [["logarithmic", "logarithmic"], ["linear", "linear"]], { onchange: () => show() });
  const show = () => place.replaceChildren(bars(spread[scale.value], spread.percentiles));
  show();
  const row = spread.percentiles.map((one) => metres(one.distance_m));
  return [
    element("label", {}, "Scale of distances", scale),
    place,
    table(spread.percentiles.map((one) => `${one.percent} %`), [row], { label: "percentiles of distances" }),
  ];
}
