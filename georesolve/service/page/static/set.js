// One of the two sets: a file that is dropped or chosen, or a dataset that was registered before.

import { Problem, get, upload } from "./api.js";
import { choice, definitions, element, problemOf, table } from "./elements.js";
import { rowsOf } from "./preview.js";
import { bytes, count, inRows } from "./quantities.js";

const COLUMNS = { lat: "Latitude", lon: "Longitude", geometry: "Geometry", id: "Id" };
const SAYS = { observations: "Observations: what was seen", references: "References: where things are" };

export class PointSet {
  // `registered` are datasets to choose from; `reading` gives how a file is to be read.
  constructor(role, registered, reading, changed) {
    this.role = role;
    this.file = null;
    this.dataset = null;
    this.reading = reading;
    this.changed = changed;
    this.sending = new AbortController();
    // Settles when it is known what the last file or dataset is.
    this.known = Promise.resolve();
    this.found = element("div", { "aria-live": "polite" });
    this.carry = element("div");
    this.columns = element("datalist", { id: `${role}-columns` });
    this.input = element("input", {
      type: "file",
      accept: ".parquet,.csv,.geojson,.json,.arrow,.arrows",
      onchange: () => this.input.files.length && this.take(this.input.files[0]),
    });
    const named = registered.map((one) => [one.id, `${one.names[0] ?? one.id} (${inRows(one.rows)})`]);
    this.select = choice("", [["", "none"], ...named], { onchange: () => this.choose(this.select.value) });
    this.names = Object.fromEntries(
      Object.keys(COLUMNS).map((name) => [
        name,
        element("input", { list: this.columns.id, placeholder: "recognised", onchange: () => this.file && this.read() }),
      ]),
    );
    this.panel = element(
      "fieldset",
      { class: "panel", ondragover: (event) => this.#over(event, true), ondragleave: (event) => this.#over(event, false), ondrop: (event) => this.#dropped(event) },
      element("legend", {}, SAYS[role]),
      element("label", {}, "A file, dropped here or chosen", this.input),
      element("label", {}, "or a dataset that is registered", this.select),
      element(
        "details",
        {},
        element("summary", {}, "Names of columns"),
        this.columns,
        Object.entries(this.names).map(([name, input]) => element("label", {}, COLUMNS[name], input)),
      ),
      this.found,
      this.carry,
    );
  }

  // Columns that the result takes along.
  get carried() {
    return [...this.carry.querySelectorAll("input:checked")].map((box) => box.value);
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
    const names = Object.entries(this.names).map(([name, input]) => [name, input.value.trim()]);
    for (const [name, value] of [...names, ...Object.entries(this.reading())]) if (value) form.append(name, value);
    form.append("file", this.file, this.file.name);
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

  async #become(dataset) {
    this.sending.abort();
    const { signal } = (this.sending = new AbortController());
    this.dataset = null;
    // What stands below stays where it is, under a pointer that is about to click it.
    this.panel.style.minHeight = `${this.panel.offsetHeight}px`;
    this.found.replaceChildren();
    this.carry.replaceChildren();
    this.changed();
    const file = this.file;
    try {
      const found = await dataset(signal);
      if (signal.aborted) return;
      this.dataset = found;
      this.found.replaceChildren();
      if (found) this.#tell(found);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      this.found.replaceChildren(problemOf(error.document));
    }
    this.changed();
    if (file) await this.#preview(file, signal);
    this.panel.style.minHeight = "";
  }

  #tell(dataset) {
    const [west, south, east, north] = (dataset.bbox ?? []).map((one) => one.toFixed(2));
    this.columns.replaceChildren(...dataset.columns.map((name) => element("option", { value: name })));
    this.found.append(
      definitions([
        ["set", this.file?.name ?? dataset.names[0] ?? dataset.id],
        ["rows", count(dataset.rows)],
        ["invalid rows", dataset.invalid_rows ? count(dataset.invalid_rows) : null],
        ["latitude", dataset.lat],
        ["longitude", dataset.lon],
        ["id", dataset.id_column ?? "none"],
        ["lines and polygons", dataset.geometry],
        ["extent", dataset.bbox && `${south}° to ${north}° north, ${west}° to ${east}° east`],
      ]),
    );
    const others = dataset.columns.filter((name) => ![dataset.lat, dataset.lon, dataset.id_column].includes(name));
    if (!others.length) return;
    this.carry.append(
      element("h3", {}, "Columns that the result takes along"),
      ...others.map((name) =>
        element("label", { class: "check" }, element("input", { type: "checkbox", value: name, onchange: this.changed }), ` ${name}`),
      ),
    );
  }

  // The first rows, where the browser itself can read the file.
  async #preview(file, signal) {
    const rows = await rowsOf(file);
    if (!rows || signal.aborted) return;
    const [names, ...others] = rows;
    this.columns.replaceChildren(...names.map((name) => element("option", { value: name })));
    const roles = { [this.dataset?.lat]: "latitude", [this.dataset?.lon]: "longitude", [this.dataset?.id_column]: "id" };
    const headings = names.map((name) => (roles[name] ? `${name} (${roles[name]})` : name));
    this.found.append(table(headings, others, { class: "preview", label: `first rows of ${file.name}` }));
  }
}
