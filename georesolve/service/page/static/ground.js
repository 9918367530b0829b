// What a map stands on: land, borders and the names of countries and places, drawn on canvases.

import { get } from "./api.js";

const SCALE = 1000; // Coordinates of world.json are thousandths of a degree, each after the one before.
const FARTHEST = 85.0511;
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Web mercator with the world from 0 to 1.
const across = (lon) => lon / 360 + 0.5;
function down(lat) {
  const sine = Math.sin((Math.max(-FARTHEST, Math.min(FARTHEST, lat)) * Math.PI) / 180);
  return 0.5 - Math.log((1 + sine) / (1 - sine)) / (4 * Math.PI);
}

function shapeOf(numbers) {
  const points = new Float64Array(numbers.length);
  const box = [Infinity, Infinity, -Infinity, -Infinity];
  let [lon, lat] = [0, 0];
  for (let at = 0; at < numbers.length; at += 2) {
    lon += numbers[at];
    lat += numbers[at + 1];
    const [x, y] = [across(lon / SCALE), down(lat / SCALE)];
    points[at] = x;
    points[at + 1] = y;
    box[0] = Math.min(box[0], x);
    box[1] = Math.min(box[1], y);
    box[2] = Math.max(box[2], x);
    box[3] = Math.max(box[3], y);
  }
  return { points, box };
}

const nameOf = ([name, lon, lat, zoom, rank]) => ({ name, x: across(lon / SCALE), y: down(lat / SCALE), zoom, rank });

// A canvas over the view and a margin, which Leaflet moves and scales until it is drawn anew.
const Canvas = L.Renderer.extend({
  initialize(paint, options) {
    this.paint = paint;
    L.Renderer.prototype.initialize.call(this, { padding: 0.35, ...options });
  },
  _initContainer() {
    this._container = document.createElement("canvas");
    this._container.setAttribute("aria-hidden", "true");
  },
  _destroyContainer() {
    this._container.remove();
    delete this._container;
  },
  _update() {
    if (this._map._animatingZoom && this._bounds) return;
    L.Renderer.prototype._update.call(this);
    const { min } = this._bounds;
    const size = this._bounds.getSize();
    const dense = window.devicePixelRatio || 1;
    L.DomUtil.setPosition(this._container, min);
    Object.assign(this._container, { width: dense * size.x, height: dense * size.y });
    Object.assign(this._container.style, { width: `${size.x}px`, height: `${size.y}px` });
    const context = this._container.getContext("2d");
    context.scale(dense, dense);
    const zoom = this._map.getZoom();
    const side = 256 * 2 ** zoom;
    const start = this._map.getPixelOrigin().add(min);
    // Each copy of the world that is in view, and where it begins on the canvas. What lies across the
    // antimeridian goes on beyond its copy.
    for (let world = Math.floor(start.x / side) - 1; world <= Math.floor((start.x + size.x) / side) + 1; world += 1) {
      const [left, top] = [world * side - start.x, -start.y];
      const inView = ([west, north, east, south]) => west * side + left < size.x && east * side + left > 0 && north * side + top < size.y && south * side + top > 0;
      this.paint(context, { side, left, top, zoom, inView, size });
    }
  },
});

// `isOpen` leaves out the edges along which shapes are cut at 180 degrees.
function trace(context, shapes, { side, left, top, inView }, isOpen = false) {
  const isSeam = (x) => x < 1e-9 || x > 1 - 1e-9;
  context.beginPath();
  for (const { points, box } of shapes) {
    if (!inView(box)) continue;
    let [x, y] = [points[0] * side + left, points[1] * side + top];
    context.moveTo(x, y);
    for (let at = 2; at < points.length; at += 2) {
      const [nextX, nextY] = [points[at] * side + left, points[at + 1] * side + top];
      // What no pixel shows is left out.
      if (Math.abs(nextX - x) + Math.abs(nextY - y) < 0.8 && at < points.length - 2) continue;
      if (isOpen && isSeam(points[at]) && isSeam(points[at - 2])) context.moveTo(nextX, nextY);
      else context.lineTo(nextX, nextY);
      [x, y] = [nextX, nextY];
    }
  }
}

// Names where there is room for them, the largest first.
function write(context, names, { side, left, top, zoom, size }, taken) {
  const land = colour("--land");
  context.fillStyle = colour("--names");
  context.strokeStyle = land;
  context.lineWidth = 3;
  context.lineJoin = "round";
  for (const { name, x, y, zoom: from, rank } of names) {
    if (from > zoom + 1) break;
    const [atX, atY] = [x * side + left, y * side + top];
    if (atX < -50 || atX > size.x + 50 || atY < 0 || atY > size.y) continue;
    const isCountry = rank === 2;
    if (isCountry && zoom > 6) continue;
    context.font = isCountry ? "600 13px system-ui, sans-serif" : `${rank ? 600 : 400} 12px system-ui, sans-serif`;
    const width = context.measureText(name).width;
    const start = isCountry ? atX - width / 2 : atX + 5;
    const box = [start - 4, atY - 9, start + width + 6, atY + 9];
    if (taken.some((one) => box[0] < one[2] && box[2] > one[0] && box[1] < one[3] && box[3] > one[1])) continue;
    taken.push(box);
    context.strokeText(name, start, atY + 4);
    context.fillText(name, start, atY + 4);
    if (isCountry) continue;
    context.beginPath();
    context.arc(atX, atY, rank ? 2.5 : 1.8, 0, 2 * Math.PI);
    context.fill();
  }
}

// Adds the land to a map; returns the layers above it that can be switched, by name.
export async function groundOf(map) {
  for (const [name, level] of [["land", 100], ["borders", 250], ["names", 350]]) {
    const { style } = map.createPane(name);
    style.zIndex = level;
    style.pointerEvents = "none";
  }
  const world = await get(new URL("world.json", import.meta.url));
  const [land, borders] = [world.land.map(shapeOf), world.borders.map(shapeOf)];
  const names = [...world.countries, ...world.places].map(nameOf).sort((one, other) => one.zoom - other.zoom);
  new Canvas((context, view) => {
    trace(context, land, view);
    context.fillStyle = colour("--land");
    context.fill("evenodd");
    trace(context, land, view, true);
    context.strokeStyle = colour("--border");
    context.lineWidth = 0.8;
    context.stroke();
  }, { pane: "land" }).addTo(map);
  const lines = new Canvas((context, view) => {
    trace(context, borders, view);
    context.strokeStyle = colour("--border");
    context.lineWidth = 1;
    context.setLineDash([4, 2]);
    context.stroke();
  }, { pane: "borders" });
  const labels = new Canvas((context, view) => write(context, names, view, []), { pane: "names" });
  return { Borders: lines.addTo(map), Names: labels.addTo(map) };
}
