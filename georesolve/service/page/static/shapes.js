// The lines and polygons of the references on a map: those in view, as the service simplifies them.

import { get } from "./api.js";
import { element } from "./elements.js";
import { count } from "./quantities.js";

// Draws them with every move; returns what tells where not all are drawn. Where each has its row of the
// result, `filled` says by the row of the set how it is filled, and what stands there.
export async function shapesOn(map, address, filled = null) {
  const told = element("p", { class: "faint", "aria-live": "polite" });
  // Above borders, below names.
  map.createPane("shapes").style.zIndex = 300;
  const style = { color: "#b87a00", weight: 1.5, fillColor: "#ffc35c", fillOpacity: 0.15, className: "shape" };
  const own = ({ properties }) => (filled ? { ...style, fillColor: filled.colour(properties.reference), fillOpacity: 0.75 } : style);
  const drawn = L.geoJSON(null, { pane: "shapes", interactive: Boolean(filled), style: own }).addTo(map);
  if (filled) drawn.bindTooltip(({ feature }) => filled.words(feature.properties.reference), { sticky: true });
  let asking = new AbortController();
  const draw = async () => {
    asking.abort();
    const { signal } = (asking = new AbortController());
    const bounds = map.getBounds();
    const lat = (one) => Math.max(-90, Math.min(90, one));
    const bbox = [bounds.getWest(), lat(bounds.getSouth()), bounds.getEast(), lat(bounds.getNorth())];
    try {
      const { shapes, features } = await get(`${address}/shapes?bbox=${bbox}`, { signal });
      drawn.clearLayers().addData(features);
      const some = features.length ? `the ${count(features.length)} largest` : "none";
      const partly = features.length < shapes ? `Of ${count(shapes)} lines and polygons here ${some} are drawn.` : "";
      told.textContent = shapes === null ? "The lines and polygons are too many to be drawn." : partly;
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  map.on("moveend", draw);
  await draw();
  return told;
}
