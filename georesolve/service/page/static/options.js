// The options of a match, as the service describes them with their defaults and bounds.

import { choice, element } from "./elements.js";

const SHOWN = ["k", "max_distance_m", "exclude_self", "near", "algorithm", "how", "on_invalid", "coordinates"];
const OF_READING = ["on_invalid", "coordinates"];
const LABELS = {
  k: "Neighbours (k)",
  max_distance_m: "Largest distance in metres",
  exclude_self: "Leave out an observation's own row",
  near: "Position and bearing of the reference",
  algorithm: "Algorithm",
  how: "Rows of the result",
  on_invalid: "Invalid coordinates",
  coordinates: "Suspicious coordinates",
};

export class MatchOptions {
  // `changed` is called with every change, `reread` when files are to be read in another way.
  constructor(described, changed, reread) {
    this.fields = {};
    this.notes = {};
    const labels = SHOWN.map((name) => {
      const { schema, description } = described[name];
      const field = this.#field(name, schema, () => {
        changed();
        if (OF_READING.includes(name)) reread();
      });
      this.fields[name] = { field, schema };
      this.notes[name] = element("span", { class: "problem", role: "alert", hidden: true });
      return element(
        "label",
        {},
        LABELS[name],
        field,
        element("small", {}, description),
        this.notes[name],
      );
    });
    this.panel = element(
      "fieldset",
      { class: "panel" },
      element("legend", {}, "Options"),
      element("div", { class: "two" }, labels),
    );
  }

  #field(name, schema, onchange) {
    if (schema.enum) return choice(schema.default, schema.enum.map((one) => [one, one]), { name, onchange });
    if (schema.type === "boolean") {
      return choice(String(schema.default), [["false", "no"], ["true", "yes"]], { name, onchange });
    }
    return element("input", {
      name,
      type: "number",
      min: schema.minimum,
      max: schema.maximum,
      step: schema.type === "integer" ? 1 : "any",
      value: schema.default ?? "",
      placeholder: "none",
      onchange,
    });
  }

  // Those that have a value, with the types of the API.
  values() {
    const values = {};
    for (const [name, { field, schema }] of Object.entries(this.fields)) {
      if (field.value === "") continue;
      if (schema.enum) values[name] = field.value;
      else if (schema.type === "boolean") values[name] = field.value === "true";
      else values[name] = Number(field.value);
    }
    return values;
  }

  // Those that say how a file is read.
  reading() {
    return Object.fromEntries(OF_READING.map((name) => [name, this.fields[name].field.value]));
  }

  // Put what was refused beside the field that it is about.
  mark(errors) {
    for (const [name, note] of Object.entries(this.notes)) {
      const found = errors.find((one) => one.pointer?.split("/").pop() === name);
      note.hidden = !found;
      note.textContent = found?.detail ?? "";
    }
  }
}
