// One of the two sets: a file that is dropped or chosen, or a dataset that was registered before.

import { Problem, get, upload } from "./api.js";
import { choice, element, problemOf, rowsTable, table } from "./elements.js";
import { rowsOf } from "./preview.js";
import { bytes, count, degrees, inRows } from "./quantities.js";

const READ = {
  lat: ["Latitude, or northing", "recognised"],
  lon: ["Longitude, or easting", "recognised"],
  geometry: ["Geometry", "recognised"],
  id: ["Id", "recognised"],
  layer: ["Layer of a GeoPackage", "the only one"],
  crs: ["CRS of these coordinates", "degrees, or EPSG:25832"],
  charset: ["Encoding of a CSV", "UTF-8, or windows-1252"],
};
const UNLISTED = ["layer", "crs", "charset"];
// Mended by a button, so that there is no need to look at the field.
const PRESSED = ["layer", "charset"];
const SAYS = { observations: ["Observations", "what was seen"], references: ["References", "where things are"] };
const ENDINGS = ".parquet,.csv,.tsv,.geojson,.json,.arrow,.arrows,.gpkg,.fgb,.zip,.gz";
const SHOWN_ROWS = 5;
const TIME = /^\d{4}-\d\d-\d\d/;

export class PointSet {
  // `registered` are datasets to choose from; `options` say how a file is to be read.
  constructor(role, registered, options, changed) {
    this.role = role;
    this.file = null;
    this.dataset = null;
    this.isOpened = false;
    this.options = options;
    this.changed = changed;
    this.sending = new AbortController();
    // Settles when it is known what the last file or dataset is.
    this.known = Promise.resolve();
    this.found = element("div", { "aria-live": "polite" });
    this.carry = element("div", { class: "chips", role: "group", "aria-label": "columns that the result takes along" });
    this.columns = element("datalist", { id: `${role}-columns` });
    this.input = element("input", {
      type: "file",
      accept: ENDINGS,
      onchange: () => this.input.files.length && this.take(this.input.files[0]),
    });
    const known = registered.map((one) => [one.id, `${one.name} (${inRows(one.rows)})`]);
    this.select = choice("", [["", "none"], ...known], { onchange: () => this.choose(this.select.value) });
    this.names = Object.fromEntries(
      Object.entries(READ).map(([name, [, placeholder]]) => [
        name,
        element("input", { list: UNLISTED.includes(name) ? null : this.columns.id, placeholder, onchange: () => this.file && this.read() }),
      ]),
    );
    this.details = element(
      "details",
      {},
      element("summary", {}, "Columns, layer, CRS, encoding"),
      this.columns,
      element("div", { class: "fields" }, Object.entries(this.names).map(([name, input]) => element("label", {}, READ[name][0], input))),
    );
    this.panel = element(
      "fieldset",
      { class: "card", ondragover: (event) => this.#over(event, true), ondragleave: (event) => this.#over(event, false), ondrop: (event) => this.#dropped(event) },
      element("legend", {}, SAYS[role][0], element("small", {}, ` ${SAYS[role][1]}`)),
      element("label", { class: "drop" }, element("strong", {}, "Drop a file here, or choose one"), element("small", {}, "GeoPackage, FlatGeobuf, zipped shapefile, GeoJSON, CSV, Parquet, Arrow"), this.input),
      known.length ? element("label", {}, "or one that was sent before", this.select) : null,
      this.found,
      this.carry,
      this.details,
    );
  }

  // Columns that the result takes along.
  get carried() {
    return [...this.carry.querySelectorAll("input:checked")].map((box) => box.value);
  }

  set carried(names) {
    for (const box of this.carry.querySelectorAll("input")) box.checked = names.includes(box.value);
  }

  #over(event, is) {
    event.preventDefault();
    this.panel.classList.toggle("over", is);
  }

  #dropped(event) {
    this.#over(event, false);
    if (!event.dataTransfer.files.length) return;
    this.input.files = event.dataTransfer.files;
    this.take(event.dataTransfer.files[0]);
  }

  async take(file) {
    this.file = file;
    this.select.value = "";
    for (const input of Object.values(this.names)) input.value = "";
    await this.read();
  }

  async choose(id) {
    this.file = null;
    this.input.value = "";
    this.select.value = id;
    this.known = this.#become(() => (id ? get(`datasets/${encodeURIComponent(id)}`) : null));
    await this.known;
  }

  // Send the file; the service reads it, and tells what it recognised or what is wrong.
  async read() {
    const form = new FormData();
    const { charset, ...names } = Object.fromEntries(Object.entries(this.names).map(([name, input]) => [name, input.value.trim()]));
    for (const [name, value] of Object.entries({ ...names, ...this.options().reading() })) if (value) form.append(name, value);
    form.append("file", charset ? this.file.slice(0, this.file.size, `text/csv; charset=${charset}`) : this.file, this.file.name);
    const bar = element("progress", { max: 1, value: 0, "aria-label": `${this.file.name} is sent` });
    const says = element("p", {}, `${this.file.name}: sending`);
    const told = (sent, all) => {
      bar.value = sent / all;
      says.textContent = `${this.file.name}: ${bytes(sent)} of ${bytes(all)} sent${sent === all ? ", being read" : ""}`;
    };
    this.known = this.#become((signal) => {
      this.found.replaceChildren(says, bar);
      return upload("datasets", form, told, signal);
    });
    await this.known;
  }

  // What was refused of this set, beside it.
  refuse(problem) {
    this.found.querySelector(".problem")?.remove();
    // Ways to read the file, as the service says: options with their values, or null for the user's.
    const ways = (problem.errors ?? []).flatMap((one) => one.options ?? []);
    // Of a file with several layers nothing is wrong.
    const asks = ways.length > 0 && ways.every((way) => way.layer) && !this.names.layer.value;
    const shown = problemOf(asks ? { ...problem, title: "Which layer?" } : problem);
    if (asks) shown.className = "remark";
    const buttons = this.#mending(ways);
    shown.append(element("div", { class: "row" }, buttons));
    this.found.prepend(shown);
    const mended = new Set(ways.flatMap(Object.keys));
    for (const [name, input] of Object.entries(this.names)) {
      if (!mended.has(name) || (buttons.length && PRESSED.includes(name))) continue;
      input.setAttribute("aria-invalid", "true");
      this.isOpened ||= !this.details.open;
      this.details.open = true;
    }
  }

  // Buttons that read the file in another way which was refused: another layer, rows that are kept.
  #mending(ways) {
    const button = (words, set) => element("button", { type: "button", onclick: () => (set(), this.read()) }, words);
    const says = { layer: (way) => way.layer || "Read it without a layer", charset: (way) => `Read it as ${way.charset}`, lat: (way) => `Latitude is ${way.lat}, longitude is ${way.lon}` };
    return ways.flatMap((way) => {
      if (Object.values(way).includes(null)) return [];
      const own = Object.keys(says).find((name) => name in way);
      const set = () => Object.entries(way).forEach(([name, value]) => (this.names[name].value = value));
      return own ? [button(says[own](way), set)] : this.options().waysAround(way).map(([words, change]) => button(words, change));
    });
  }

  async #become(dataset) {
    this.sending.abort();
    const { signal } = (this.sending = new AbortController());
    this.dataset = null;
    for (const input of Object.values(this.names)) input.removeAttribute("aria-invalid");
    // What stands below stays where it is, under a pointer that is about to click it.
    this.panel.style.minHeight = `${this.panel.offsetHeight}px`;
    this.found.replaceChildren();
    this.carry.replaceChildren();
    this.changed();
    try {
      const found = await dataset(signal);
      if (signal.aborted) return;
      this.dataset = found;
      this.found.replaceChildren();
      if (found) await this.#tell(found, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      this.found.replaceChildren();
      this.refuse(error.document);
      await this.#showRefused(signal);
    }
    if (signal.aborted) return;
    this.changed();
    this.panel.style.minHeight = "";
  }

  async #tell(dataset, signal) {
    this.columns.replaceChildren(...dataset.columns.map((name) => element("option", { value: name })));
    const [west, south, east, north] = dataset.bbox ?? [];
    const extent = dataset.bbox && `extent ${degrees(south, "S", "N")} to ${degrees(north, "S", "N")}, ${degrees(west, "W", "E")} to ${degrees(east, "W", "E")}`;
    // What a refusal opened takes much room on a phone.
    if (this.isOpened && !this.details.contains(document.activeElement)) this.details.open = this.isOpened = false;
    const facts = [inRows(dataset.rows), dataset.geometry && `lines and polygons in ${dataset.geometry}`, dataset.invalid_rows ? `${count(dataset.invalid_rows)} of them without valid coordinates` : null, extent];
    this.found.append(element("p", {}, element("strong", {}, this.file?.name ?? dataset.name), element("br"), element("span", { class: "faint" }, facts.filter(Boolean).join(" · "))));
    const rows = await get(`datasets/${dataset.id}/rows?most=${SHOWN_ROWS}`, { signal });
    const others = dataset.columns.filter((name) => ![dataset.lat, dataset.lon, dataset.id_column].includes(name));
    if (others.length) {
      // What a map can show at a point without a further step.
      const isText = (name) => rows.some((row) => typeof row[name] === "string" && !TIME.test(row[name]));
      const plain = others.filter((name) => dataset.lat !== `${name}_lat`);
      const called = [/^(name|title|label)$/i, /name/i].map((words) => others.find((name) => words.test(name))).find(Boolean) ?? (dataset.id_column ? null : (plain.find(isText) ?? plain[0]));
      const box = (name) => element("label", { class: "chip" }, element("input", { type: "checkbox", value: name, checked: name === called, onchange: this.changed }), ` ${name}`);
      this.carry.append(element("h3", {}, "Take along into the result"), ...others.map(box));
    }
    if (!dataset.rows) this.found.append(element("p", { class: "remark" }, "The file has no rows, so nothing can be matched."));
    this.found.append(rowsTable(rows, `first rows of the ${this.role}`, dataset));
  }

  // The first rows of what the service did not take, where the browser itself can read it.
  async #showRefused(signal) {
    const rows = this.file && (await rowsOf(this.file));
    if (!rows?.length || signal.aborted) return;
    const [names, ...others] = rows;
    this.columns.replaceChildren(...names.map((name) => element("option", { value: name })));
    this.found.append(table(names, others, { class: "preview", label: `first rows of the ${this.role}` }));
  }
}
