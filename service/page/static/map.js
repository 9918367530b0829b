// The observations of a result on a map; near by, each with a line to its reference.

import { Problem, get } from "./api.js";
import { element, problemOf } from "./elements.js";
import { count, metres } from "./quantities.js";

const MOST_ROWS = 50_000;
// Beyond it is no place on a web map.
const MOST_LATITUDE = 85.0511;
const MOST_LINES = 400;
const LEAST_ZOOM_OF_LINES = 6;
const RAMP = ["#3b4cc0", "#4f9bd9", "#58b89b", "#c9b037", "#e07b39", "#b40426"];
const WORLDS = [-360, 0, 360];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A place that is near the antimeridian stands on both of its sides.
const copiesOf = (lon) => (lon > 90 ? [0, -360] : lon < -90 ? [0, 360] : [0]);

function wordsOf(row) {
  const observation = row.observation_id ?? `row ${row.observation}`;
  if (row.reference === null) return `${observation}: ${row.status.replaceAll("_", " ")}`;
  const rank = row.rank ? ` (${row.rank})` : "";
  return `${observation} → ${row.reference_id ?? `row ${row.reference}`}${rank}: ${metres(row.distance_m)}`;
}

export async function mapOf(address, rows) {
  if (!rows) return [];
  if (rows > MOST_ROWS) {
    const most = `The page draws results of up to ${count(MOST_ROWS)} rows; this one has ${count(rows)}.`;
    return [element("p", {}, most, " A map program reads the GeoJSON below.")];
  }
  try {
    const points = (await get(`${address}/results/matches.geojson`)).features;
    return drawn(address, points.filter((one) => one.geometry));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return [problemOf(error.document)];
  }
}

function drawn(address, points) {
  const shown = points.filter((one) => Math.abs(one.geometry.coordinates[1]) <= MOST_LATITUDE);
  const place = element("div", { class: "map", role: "region", "aria-label": "map of the result" });
  const told = element("p", { "aria-live": "polite", class: "faint" });
  // Leaflet wants its place to have a size, so it must stand in the page before.
  requestAnimationFrame(() => draw(place, told, address, shown));
  const beyond = points.length - shown.length;
  return [
    place,
    told,
    ...legendOf(shown),
    beyond ? element("p", {}, `${count(beyond)} rows lie beyond ${MOST_LATITUDE}° north or south and are not on the map.`) : "",
  ];
}

// Distances span powers of ten, and so do the colours.
function scaleOf(points) {
  const logs = points.map((one) => one.properties.distance_m).filter((one) => one !== null).map((one) => Math.log10(Math.max(one, 1)));
  const [least, most] = logs.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
  const at = (distance) => (most > least ? (Math.log10(Math.max(distance, 1)) - least) / (most - least) : 0);
  return { least: 10 ** least, most: 10 ** most, colour: (distance) => RAMP[Math.round(at(distance) * (RAMP.length - 1))] };
}

function legendOf(points) {
  const { least, most } = scaleOf(points);
  if (!Number.isFinite(least)) return [];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "legend");
  svg.setAttribute("viewBox", `0 0 ${RAMP.length} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  RAMP.forEach((fill, x) => {
    const box = document.createElementNS(svg.namespaceURI, "rect");
    for (const [name, value] of Object.entries({ x, width: 1, height: 1, fill })) box.setAttribute(name, value);
    svg.append(box);
  });
  const ends = element("div", { class: "row" }, element("span", {}, metres(least)), element("span", {}, metres(most)));
  return [svg, ends];
}

async function draw(place, told, address, points) {
  const map = L.map(place, { worldCopyJump: true, minZoom: 1, maxZoom: 18 });
  map.attributionControl.setPrefix(false).addAttribution("Natural Earth");
  // Before there are layers: each of those added to a map without a view waits for one.
  if (points.length) map.fitBounds(points.map(({ geometry: { coordinates: [lon, lat] } }) => [lat, lon]));
  else map.fitWorld();
  map.createPane("land").style.zIndex = 200;
  const land = await (await fetch(new URL("land.json", import.meta.url))).json();
  for (const world of WORLDS) {
    L.geoJSON(land, {
      interactive: false,
      pane: "land",
      coordsToLatLng: ([lon, lat]) => L.latLng(lat, lon + world),
      style: (one) => ({ className: one.properties.kind, fill: one.properties.kind === "land", fillOpacity: 1 }),
    }).addTo(map);
  }
  const scale = scaleOf(points);
  const renderer = L.canvas({ tolerance: 4 });
  const dots = L.featureGroup().bindTooltip((dot) => dot.options.words);
  for (const { geometry, properties } of points) {
    const [lon, lat] = geometry.coordinates;
    const fillColor = properties.reference === null ? colour("--wrong") : scale.colour(properties.distance_m);
    for (const world of copiesOf(lon)) {
      const about = { renderer, radius: 4, weight: 1, color: colour("--paper"), fillColor, fillOpacity: 0.9 };
      dots.addLayer(L.circleMarker([lat, lon + world], { ...about, words: wordsOf(properties) }));
    }
  }
  dots.addTo(map);
  const joins = L.layerGroup().addTo(map);
  let lines = null;
  const near = async () => {
    joins.clearLayers();
    const bounds = map.getBounds();
    const inside = points.flatMap((one, at) => {
      const [lon, lat] = one.geometry.coordinates;
      const worlds = copiesOf(lon).filter((world) => bounds.contains([lat, lon + world]));
      return worlds.map((world) => [at, world]);
    });
    if (map.getZoom() < LEAST_ZOOM_OF_LINES || inside.length > MOST_LINES) {
      told.textContent = "Zoom in to see a line from each observation to its reference.";
      return;
    }
    // By row: both have the same order, but some have no line.
    lines ??= get(`${address}/results/matches.geojson?geometry=line`).then(({ features }) =>
      new Map(features.filter((one) => one.geometry).map((one) => [keyOf(one.properties), one])),
    );
    const known = await lines;
    joins.clearLayers();
    let drawn = 0;
    for (const [at, world] of inside) {
      const line = known.get(keyOf(points[at].properties));
      if (!line) continue;
      drawn += 1;
      join(line, world).forEach((layer) => joins.addLayer(layer));
    }
    told.textContent = `${count(inside.length)} observations in view, ${count(drawn)} with a line to their reference.`;
  };
  map.on("moveend", near);
  await near();
  place.dataset.drawn = points.length;
}

const keyOf = (row) => `${row.observation}/${row.rank ?? 1}`;

// A line across the antimeridian comes in two pieces, and is drawn as one.
function join({ geometry, properties }, world) {
  const pieces = geometry.type === "LineString" ? [geometry.coordinates] : geometry.coordinates;
  const [lon, lat] = pieces[0][0];
  let [other, otherLat] = pieces.at(-1).at(-1);
  if (other - lon > 180) other -= 360;
  if (lon - other > 180) other += 360;
  const ends = [[lat, lon + world], [otherLat, other + world]];
  const words = wordsOf(properties);
  return [
    L.polyline(ends, { color: colour("--ink"), weight: 2, className: "join" }).bindTooltip(words, { sticky: true }),
    L.circleMarker(ends[1], { radius: 5, weight: 1, color: colour("--ink"), fillColor: "#ffc35c", fillOpacity: 1, className: "reference" }).bindTooltip(words),
  ];
}
