// The result on a map: tiles of the service, and near by each observation with lines to its references,
// or with its count; below and above them land, borders and names.

import { Problem, get, rowsIn } from "./api.js";
import { definitions, element, problemOf, svg } from "./elements.js";
import { colour, groundOf } from "./ground.js";
import { count, inRows, many, metres, rangeOf } from "./quantities.js";
import { shapesOn } from "./shapes.js";

// Those in view that are drawn with their lines; up to the other number as dots, coloured as tiles are,
// which tell of more.
const MOST_LINED = 500;
const MOST_DOTS = 5000;
const MOST_TILES = 40;
// A tile with more gives none of them, and beside it dots would look like all that there is.
const MOST_A_TILE = 2000;
// Of so many lines and polygons the page holds the counts, and fills them.
const MOST_FILLED = 10000;
const TILE_PIXELS = 256;
const WIDE_PIXELS = 700;
const COUNTED = { observation: "reference", reference: "observation" };
const OWN = /^(observation|reference|rank|distance_m|status|count|near_lat|near_lon|bearing_deg)$/;
export const DRAWING = "The map is being drawn; the first one on a machine takes some seconds longer.";
const NAMED = /name|title|label/i;

// By what a row of the result is of.
const FAR = {
  nearest: "Zoom in to see lines from each observation to its references.",
  pair: "Zoom in to see a line from each observation to each of its references.",
  observation: "Zoom in to see the count of each observation.",
  reference: "Zoom in to see the count of each reference.",
};
const NEAR = {
  nearest: (n) => `${many(n, "observation")} in and around this view, each with a line to its references if it has any.`,
  pair: (n) => `${many(n, "pair")} in and around this view, each with a line from the observation to the reference.`,
  observation: (n) => `${many(n, "observation")} in and around this view: point at one to read its count.`,
  reference: (n) => `${many(n, "reference")} in and around this view: point at one to read its count.`,
};

// What one of the two sets is called in a row: by a column that is a name, its id, another column, or its row.
export function calledIn(row, role) {
  const own = Object.keys(row).filter((key) => key.startsWith(`${role}_`) && ["string", "number"].includes(typeof row[key]));
  const texts = own.filter((key) => typeof row[key] === "string");
  const name = texts.find((key) => NAMED.test(key)) ?? (row[`${role}_id`] !== undefined ? `${role}_id` : (texts[0] ?? own[0]));
  return name && row[name] !== null ? String(row[name]) : `row ${row[role]}`;
}

function headOf(row, kind) {
  if (row.count !== undefined && kind in COUNTED) return `${calledIn(row, kind)}: ${many(row.count, COUNTED[kind])}`;
  const observation = calledIn(row, "observation");
  if (row.reference === null) return `${observation}: ${row.status.replaceAll("_", " ")}`;
  return `${observation} → ${calledIn(row, "reference")}: ${metres(row.distance_m)}`;
}

// What stands at a point or a line: what it joins, and what the result has taken along.
function wordsOf(row, kind) {
  const head = headOf(row, kind);
  const others = Object.entries(row).filter(([name, value]) => !OWN.test(name) && value !== null && !head.includes(String(value)));
  const shown = others.map(([name, value]) => [name.replace("_", " "), typeof value === "object" ? JSON.stringify(value) : String(value)]);
  const rank = row.rank ? [["rank", String(row.rank)]] : [];
  return element("div", {}, element("span", {}, head), shown.length + rank.length ? definitions([...rank, ...shown]) : null);
}

// `toldRow` is a row in words of the page.
export async function mapOf(address, kind, report, toldRow) {
  let layer;
  try {
    layer = await get(`${address}/tiles`);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return [problemOf(error.document)];
  }
  if (!layer.rows) return [element("p", {}, "The result has no observation that a map could show.")];
  const place = element("div", { class: "map", role: "region", "aria-label": "map of the result" });
  const told = element("p", { "aria-live": "polite", class: "faint" }, DRAWING);
  // Leaflet wants its place to have a size, so it must stand in the page before.
  requestAnimationFrame(() => draw(place, told, address, layer, kind, report, toldRow));
  const beyond = `Beyond 85.0511° north or south, where this map ends: ${inRows(layer.rows_beyond)}.`;
  return [place, told, layer.rows_beyond ? element("p", { class: "faint" }, beyond) : ""];
}

// What the colours mean.
function keyOf({ colors, color_unmatched: unmatched, counts, rows }, kind, areFilled) {
  if (kind in COUNTED) {
    const ranges = colors.map(({ color, count: from }, at) => {
      const words = at + 1 < colors.length ? rangeOf(from, colors[at + 1].count - 1) : `${count(from)} or more`;
      return [color, words];
    });
    return [
      element("p", {}, areFilled ? "Colour is the count of each." : `Colour is the greatest count of the ${kind}s in a pixel.`),
      element("ul", { class: "ranges", "aria-label": "counts by colour" }, [[unmatched, "0"], ...ranges].map(([color, words]) => element("li", {}, swatches("swatch", [color]), ` ${words}`))),
    ];
  }
  if (!colors.length) return [element("p", {}, swatches("swatch", [unmatched]), " unmatched")];
  const without = (counts.matched ?? 0) < rows ? element("p", {}, swatches("swatch", [unmatched]), " without a match") : null;
  const { color, distance_m: most } = colors.at(-1);
  if (colors[0].distance_m === most) return [element("p", {}, swatches("swatch", [color]), ` Distance: ${metres(most)}`), without];
  const ends = [colors[0], colors[colors.length >> 1], colors.at(-1)].map((one) => element("span", {}, metres(one.distance_m)));
  return [
    element("p", {}, "Distance, the median in a pixel"),
    swatches("legend", colors.map((one) => one.color)),
    element("div", { class: "row" }, ends),
    without,
  ];
}

// Colours side by side; a reader of the screen hears the words around them.
function swatches(name, colours) {
  const boxes = colours.map((fill, x) => svg("rect", { x, width: 1, height: 1, fill }));
  return svg("svg", { class: name, viewBox: `0 0 ${colours.length} 1`, preserveAspectRatio: "none", "aria-hidden": true }, ...boxes);
}

async function draw(place, told, address, layer, kind, report, toldRow) {
  const map = L.map(place, { worldCopyJump: true, minZoom: 1, maxZoom: layer.maxzoom });
  const isWide = place.clientWidth > WIDE_PIXELS;
  map.attributionControl.setPrefix(false).addAttribution("Natural Earth");
  L.control.scale({ position: "bottomright" }).addTo(map);
  // A row a line or polygon lies on the map where that begins, and all of it is to be seen.
  const whole = kind === "reference" && layer.shapes ? report.references_bbox : null;
  const [west, south, east, north] = whole?.[2] <= 180 ? whole : layer.bounds;
  const all = [[south, west], [north, east]];
  // The legend and the list of layers would cover what lies in their corners.
  const showAll = () => map.fitBounds(all, { paddingBottomRight: [isWide ? 120 : 0, 80] });
  showAll();
  // A result of the whole world would stand there twice, small: the poles are a way up or down.
  const once = Math.floor(Math.log2((1.25 * map.getSize().x) / TILE_PIXELS));
  if (map.getZoom() < once) map.setView(map.getCenter(), once, { animate: false });
  const ground = await groundOf(map);
  // A pixel of a tile is two of the map: single observations are seen.
  const doubled = { tileSize: 2 * TILE_PIXELS, zoomOffset: -1, maxNativeZoom: layer.maxzoom };
  const tiles = L.tileLayer(`${address}/tiles/{z}/{x}/{y}.png`, doubled);
  const dots = L.canvas({ padding: 0.3 });
  // Leaflet takes a text for HTML, and an element as it is: ids are a stranger's.
  const tip = (one) => wordsOf(toldRow(one.options.row), kind);
  const singles = L.featureGroup().bindTooltip(tip, { sticky: true });
  // Lines and polygons are filled by their counts: their first vertices would say the same again.
  const rows = kind === "reference" && layer.shapes && layer.rows <= MOST_FILLED ? new Map() : null;
  if (rows) for await (const row of rowsIn(address)) rows.set(row.reference, row);
  else for (const one of [tiles, singles]) one.addTo(map);
  const layers = { [kind in COUNTED ? "Counts" : "Distances"]: tiles, [kind in COUNTED ? "Single points" : "Points and lines"]: singles, ...ground };
  L.control.layers({}, layers, { collapsed: !isWide }).addTo(map);
  const button = L.control({ position: "topleft" });
  button.onAdd = () => element("div", { class: "leaflet-bar" }, element("a", { href: "#", role: "button", title: "Show all", "aria-label": "Show all", onclick: (event) => (event.preventDefault(), showAll()) }, "⤢"));
  button.addTo(map);
  const key = L.control({ position: "bottomleft" });
  key.onAdd = () => element("div", { class: "key" }, keyOf(layer, kind, Boolean(rows)));
  key.addTo(map);
  const ranks = kind === "nearest" ? report.options.k : 1;
  let words = DRAWING;
  const tell = () => (told.textContent = tiles.isLoading() ? DRAWING : words);
  let asking = new AbortController();
  const near = async () => {
    asking.abort();
    const { signal } = (asking = new AbortController());
    // The map may zoom on meanwhile.
    const zoom = map.getZoom();
    const inView = tilesIn(map);
    const ask = (query) => Promise.all(inView.map(({ z, x, y }) => get(`${address}/tiles/${z}/${x}/${y}.geojson${query}`, { signal })));
    let found = [];
    let total = Infinity;
    let most = 0;
    try {
      if (inView.length <= MOST_TILES) {
        const counts = (await ask("?most=0")).map((one) => one.observations);
        total = counts.reduce((sum, one) => sum + one, 0);
        most = Math.max(...counts);
      }
      if (total * ranks <= MOST_LINED) found = await ask(ranks > 1 ? "?ranks=all" : "");
      else if (total <= MOST_DOTS && most <= MOST_A_TILE) found = await ask("");
    } catch (error) {
      if (error.name === "AbortError") return;
      throw error;
    }
    singles.closeTooltip();
    singles.clearLayers();
    place.dataset.zoom = zoom;
    const isNear = total * ranks <= MOST_LINED;
    const parts = found.flatMap(({ features }, at) => features.flatMap((one) => single(one, inView[at].world, layer, kind, isNear ? null : dots)));
    // Lines below the dots, and an observation above its references.
    const level = ({ options: { className } }) => ["join", "reference"].indexOf(className) & 3;
    parts.sort((one, other) => level(one) - level(other)).forEach((part) => singles.addLayer(part));
    const isPointedAt = isNear || (found.length && kind in COUNTED);
    words = rows ? "Point at a line or a polygon to read its count." : !total ? "Nothing of the result is in view." : isPointedAt ? NEAR[kind](total) : FAR[kind];
    tell();
  };
  map.on("moveend", near);
  tiles.on("load", tell);
  const filled = rows && { colour: (reference) => colourOf(layer, rows.get(reference)?.count), words: (reference) => wordsOf(rows.get(reference), kind) };
  if (layer.shapes) told.after(await shapesOn(map, address, filled));
  await near();
}

// The tiles that the map shows; `world` is how many degrees its copy of the world is shifted by.
function tilesIn(map) {
  const z = map.getZoom();
  const { min, max } = map.getPixelBounds();
  const side = 2 ** z;
  const found = [];
  for (let y = Math.max(0, Math.floor(min.y / TILE_PIXELS)); y <= Math.min(side - 1, Math.floor(max.y / TILE_PIXELS)); y += 1) {
    for (let at = Math.floor(min.x / TILE_PIXELS); at <= Math.floor(max.x / TILE_PIXELS); at += 1) {
      const turn = Math.floor(at / side);
      found.push({ z, x: at - turn * side, y, world: 360 * turn });
    }
  }
  return found;
}

const colourOf = (layer, number) => layer.colors.findLast((one) => one.count <= number)?.color ?? layer.color_unmatched;

// A line across the antimeridian comes in two pieces, and is drawn as one.
// `dots` is the canvas for what is too much for lines.
function single({ geometry, properties: row }, world, layer, kind, dots) {
  const dot = (lat, lon, fillColor, className) =>
    L.circleMarker([lat, lon], { radius: dots ? 3.5 : 5, weight: dots ? 0.5 : 1, color: colour("--ink"), fillColor, fillOpacity: 1, className, row, ...(dots && { renderer: dots }) });
  if (geometry.type === "Point") {
    const [lon, lat] = geometry.coordinates;
    // A further reference may be too far of an observation that has its nearest.
    if (row.rank > 1) return [];
    // Where a shape is nearest the result may not say.
    const near = layer.colors.findLast((one) => one.distance_m <= row.distance_m);
    if (!(kind in COUNTED)) return [dot(lat, lon + world, row.reference === null ? layer.color_unmatched : (near ?? layer.colors[0]).color, row.reference === null ? "unmatched" : "observation")];
    return [dot(lat, lon + world, colourOf(layer, row.count), "counted")];
  }
  const pieces = geometry.type === "LineString" ? [geometry.coordinates] : geometry.coordinates;
  const [lon, lat] = pieces[0][0];
  const { color } = layer.colors.findLast((one) => one.distance_m <= row.distance_m) ?? layer.colors[0];
  if (dots) return [dot(lat, lon + world, color, "observation")];
  let [other, otherLat] = pieces.at(-1).at(-1);
  if (other - lon > 180) other -= 360;
  if (lon - other > 180) other += 360;
  const ends = [[lat, lon + world], [otherLat, other + world]];
  const faint = (row.rank ?? 1) > 1;
  return [
    L.polyline(ends, { color: colour("--ink"), weight: faint ? 1 : 2, opacity: faint ? 0.6 : 1, className: "join", row }),
    dot(...ends[1], colour("--paper"), "reference"),
    ...(faint ? [] : [dot(...ends[0], color, "observation")]),
  ];
}
