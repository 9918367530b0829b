// The result on a map: tiles of the service, and near by each observation with a line to its
// reference, or with its count.

import { Problem, get } from "./api.js";
import { element, problemOf } from "./elements.js";
import { count, inRows, many, metres, rangeOf } from "./quantities.js";
import { shapesOn } from "./shapes.js";

// Those in view that are drawn one by one; more are told by the colours of the tiles.
const MOST_SINGLE = 500;
const MOST_TILES = 40;
const TILE_PIXELS = 256;
const WORLDS = [-360, 0, 360];
const COUNTED = { observation: "reference", reference: "observation" };

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// By what a row of the result is of.
const FAR = {
  nearest: "Zoom in to see a line from each observation to its reference.",
  pair: "Zoom in to see a line from each observation to each of its references.",
  observation: "Zoom in to see the count of each observation.",
  reference: "Zoom in to see the count of each reference.",
};
const NEAR = {
  nearest: (n) => `${many(n, "observation")} in these tiles, each with a line to its reference if it has one.`,
  pair: (n) => `${many(n, "pair")} in these tiles, each with a line from the observation to the reference.`,
  observation: (n) => `${many(n, "observation")} in these tiles: point at one to read its count.`,
  reference: (n) => `${many(n, "reference")} in these tiles: point at one to read its count.`,
};

function wordsOf(row, kind) {
  if (row.count !== undefined && kind in COUNTED) {
    return `${row[`${kind}_id`] ?? `row ${row[kind]}`}: ${many(row.count, COUNTED[kind])}`;
  }
  const observation = row.observation_id ?? `row ${row.observation}`;
  if (row.reference === null) return `${observation}: ${row.status.replaceAll("_", " ")}`;
  return `${observation} → ${row.reference_id ?? `row ${row.reference}`}: ${metres(row.distance_m)}`;
}

export async function mapOf(address, kind) {
  let layer;
  try {
    layer = await get(`${address}/tiles`);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return [problemOf(error.document)];
  }
  if (!layer.rows) return [element("p", {}, "The result has no observation that a map could show.")];
  const place = element("div", { class: "map", role: "region", "aria-label": "map of the result" });
  const told = element("p", { "aria-live": "polite", class: "faint" });
  // Leaflet wants its place to have a size, so it must stand in the page before.
  requestAnimationFrame(() => draw(place, told, address, layer, kind));
  const beyond = `Beyond 85.0511° north or south, where this map ends: ${inRows(layer.rows_beyond)}.`;
  return [place, told, ...(kind in COUNTED ? rangesOf(layer, kind) : legendOf(layer)), layer.rows_beyond ? element("p", {}, beyond) : ""];
}

function legendOf({ colors, color_unmatched: unmatched }) {
  if (!colors.length) return [];
  const strip = swatches("legend", colors.map((one) => one.color));
  const ends = [colors[0], colors[colors.length >> 1], colors.at(-1)].map((one) => element("span", {}, metres(one.distance_m)));
  const meaning = ["Colour is the median distance of a pixel, ", swatches("swatch", [unmatched]), " that it has unmatched observations alone; opacity is how many it has."];
  return [strip, element("div", { class: "row" }, ends), element("p", { class: "faint" }, ...meaning)];
}

// The ranges of counts, each with its colour.
function rangesOf({ colors, color_unmatched: none }, kind) {
  const ranges = colors.map(({ color, count: from }, at) => {
    const words = at + 1 < colors.length ? rangeOf(from, colors[at + 1].count - 1) : `${count(from)} or more`;
    return [color, words];
  });
  const meaning = `Colour is the greatest count of the ${kind}s in a pixel.`;
  return [
    element("ul", { class: "ranges", "aria-label": "counts by colour" }, [[none, "0"], ...ranges].map(([color, words]) => element("li", {}, swatches("swatch", [color]), ` ${words}`))),
    element("p", { class: "faint" }, meaning),
  ];
}

// Colours side by side; a reader of the screen hears the words around them.
function swatches(name, colours) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const about = { class: name, viewBox: `0 0 ${colours.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true" };
  for (const [name, value] of Object.entries(about)) svg.setAttribute(name, value);
  colours.forEach((fill, x) => {
    const box = document.createElementNS(svg.namespaceURI, "rect");
    for (const [name, value] of Object.entries({ x, width: 1, height: 1, fill })) box.setAttribute(name, value);
    svg.append(box);
  });
  return svg;
}

async function draw(place, told, address, layer, kind) {
  const map = L.map(place, { worldCopyJump: true, minZoom: 1, maxZoom: layer.maxzoom });
  map.attributionControl.setPrefix(false).addAttribution("Natural Earth");
  const [west, south, east, north] = layer.bounds;
  map.fitBounds([[south, west], [north, east]]);
  // A result of the whole world would stand there twice, small: the poles are a way up or down.
  const once = Math.floor(Math.log2((1.1 * map.getSize().x) / TILE_PIXELS));
  if (map.getZoom() < once) map.setView(map.getCenter(), once, { animate: false });
  map.createPane("land").style.zIndex = 100;
  const land = await (await fetch(new URL("land.json", import.meta.url))).json();
  for (const world of WORLDS) {
    L.geoJSON(land, {
      interactive: false,
      pane: "land",
      coordsToLatLng: ([lon, lat]) => L.latLng(lat, lon + world),
      style: (one) => ({ className: one.properties.kind, fill: one.properties.kind === "land", fillOpacity: 1 }),
    }).addTo(map);
  }
  L.tileLayer(`${address}/tiles/{z}/{x}/{y}.png`).addTo(map);
  // Leaflet takes a text for HTML, and an element as it is: ids are a stranger's.
  const tip = (one) => element("span", {}, one.options.words);
  const singles = L.featureGroup().bindTooltip(tip, { sticky: true }).addTo(map);
  let asking = new AbortController();
  const near = async () => {
    asking.abort();
    const { signal } = (asking = new AbortController());
    const inView = tilesIn(map);
    const ask = (query) => Promise.all(inView.map(({ z, x, y }) => get(`${address}/tiles/${z}/${x}/${y}.geojson${query}`, { signal })));
    let found = [];
    let total = Infinity;
    try {
      if (inView.length <= MOST_TILES) total = (await ask("?most=0")).reduce((sum, one) => sum + one.observations, 0);
      if (total <= MOST_SINGLE) found = await ask("");
    } catch (error) {
      if (error.name === "AbortError") return;
      throw error;
    }
    singles.clearLayers();
    place.dataset.zoom = map.getZoom();
    if (!found.length) {
      told.textContent = FAR[kind];
      return;
    }
    found.forEach(({ features }, at) => features.forEach((one) => single(one, inView[at].world, layer, kind).forEach((part) => singles.addLayer(part))));
    told.textContent = NEAR[kind](total);
  };
  map.on("moveend", near);
  if (layer.shapes) told.after(await shapesOn(map, address));
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

// A line across the antimeridian comes in two pieces, and is drawn as one.
function single({ geometry, properties }, world, layer, kind) {
  const words = wordsOf(properties, kind);
  const dot = (lat, lon, fillColor, className) =>
    L.circleMarker([lat, lon], { radius: 5, weight: 1, color: colour("--ink"), fillColor, fillOpacity: 1, className, words });
  if (geometry.type === "Point") {
    const [lon, lat] = geometry.coordinates;
    if (!(kind in COUNTED)) return [dot(lat, lon + world, colour("--wrong"), "unmatched")];
    const range = layer.colors.findLast((one) => one.count <= properties.count);
    return [dot(lat, lon + world, range?.color ?? layer.color_unmatched, "counted")];
  }
  const pieces = geometry.type === "LineString" ? [geometry.coordinates] : geometry.coordinates;
  const [lon, lat] = pieces[0][0];
  let [other, otherLat] = pieces.at(-1).at(-1);
  if (other - lon > 180) other -= 360;
  if (lon - other > 180) other += 360;
  const ends = [[lat, lon + world], [otherLat, other + world]];
  return [
    L.polyline(ends, { color: colour("--ink"), weight: 2, className: "join", words }),
    dot(...ends[0], colour("--bar"), "observation"),
    dot(...ends[1], "#ffc35c", "reference"),
  ];
}
