// How far observations lie from their references, or how many these are: bars of equal or of growing
// width.

import { choice, definitions, element, svg } from "./elements.js";
import { count, metres, rangeOf } from "./quantities.js";

const [WIDTH, HEIGHT, FOOT] = [640, 200, 24];
const MARKED = [5, 50, 95];
const TOLD = { 0: "least", 5: "5 %", 50: "median", 95: "95 %", 100: "largest" };

// Bins stand side by side in equal widths: of the logarithmic ones the edges have equal ratios.
function bars({ edges_m, edges = edges_m, counts }, percentiles, words) {
  const most = Math.max(...counts);
  const width = WIDTH / counts.length;
  const drawing = svg("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT + FOOT}`, role: "img", "aria-label": `histogram of ${words.of}` });
  counts.forEach((rows, at) => {
    const height = (HEIGHT * rows) / most;
    const about = `${words.range(edges[at], edges[at + 1])}: ${count(rows)}`;
    drawing.append(
      svg("rect", { x: at * width, y: HEIGHT - height, width: Math.max(0.5, width - 1), height }, svg("title", {}, about)),
    );
  });
  percentiles.filter((one) => MARKED.includes(one.percent)).forEach(({ percent, number }, place) => {
    const after = edges.findIndex((edge) => edge > number);
    const at = after < 1 ? counts.length - 1 : after - 1;
    const x = width * (at + (number - edges[at]) / (edges[at + 1] - edges[at]));
    drawing.append(svg("line", { class: "percentile", x1: x, x2: x, y1: 0, y2: HEIGHT }), svg("text", { x: Math.min(x + 3, WIDTH - 48), y: 18 + 20 * place }, `${percent} %`));
  });
  [0, counts.length >> 1, counts.length].forEach((at, place) => {
    const anchor = ["start", "middle", "end"][place];
    drawing.append(svg("text", { x: at * width, y: HEIGHT + 19, "text-anchor": anchor }, words.number(place === 2 ? words.last(edges[at]) : edges[at])));
  });
  return drawing;
}

const DISTANCES = { of: "distances", number: metres, last: (edge) => edge, range: (from, to) => `${metres(from)} to ${metres(to)}` };
// They are whole: a bin ends before its upper edge.
const COUNTS = { of: "counts", number: count, last: (edge) => edge - 1, range: (from, to) => rangeOf(from, to - 1) };

export function histogramOf(spread, isCount) {
  if (!spread.percentiles.length) return [element("p", {}, "No observation has a reference.")];
  const words = isCount ? COUNTS : DISTANCES;
  const percentiles = spread.percentiles.map((one) => ({ ...one, number: one.distance_m ?? one.count }));
  const [least, most] = [percentiles[0].number, percentiles.at(-1).number];
  // Such as those of points in polygons.
  if (least === most) return [element("p", {}, `All ${words.of} are ${words.number(most)}.`)];
  const place = element("div");
  const scale = choice("logarithmic", [["logarithmic", "logarithmic"], ["linear", "linear"]], { onchange: () => show() });
  const show = () => place.replaceChildren(bars(spread[scale.value], percentiles, words));
  show();
  return [
    place,
    definitions(percentiles.filter((one) => one.percent in TOLD).map((one) => [TOLD[one.percent], words.number(one.number)])),
    element("label", {}, `Scale of ${words.of}`, scale),
  ];
}
