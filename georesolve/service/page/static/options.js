// The options of a match, as the service describes them with their defaults and bounds.

import { choice, element } from "./elements.js";

const QUESTIONS = [
  ["nearest", "the nearest references"],
  ["within", "all references within a distance"],
];
const SHOWN = ["k", "max_distance_m", "distance_m", "summary", "exclude_self", "once", "near", "algorithm", "how", "on_invalid", "coordinates"];
const OF_READING = ["on_invalid", "coordinates"];
const LABELS = {
  k: "Neighbours (k)",
  max_distance_m: "Largest distance in metres",
  distance_m: "Distance in metres",
  summary: "Result",
  exclude_self: "Leave out an observation's own row",
  once: "Each pair once",
  near: "Position and bearing of the reference",
  algorithm: "Algorithm",
  how: "Rows of the result",
  on_invalid: "Invalid coordinates",
  coordinates: "Suspicious coordinates",
};
// Of these the page takes less than the service.
const NOTES = { distance_m: "inclusive; required", summary: "counts make no pairs, however many these would be" };
const SUMMARIES = [
  ["", "pairs, nearest first"],
  ["observation", "a count for each observation"],
  ["reference", "a count for each reference"],
];

export class MatchOptions {
  // `described` are the inputs of each question. `changed` is called with every change, `reread` when
  // files are to be read in another way.
  constructor(described, changed, reread) {
    this.described = described;
    this.fields = {};
    this.notes = {};
    const asked = choice("nearest", QUESTIONS, {
      name: "question",
      onchange: () => {
        this.fields.how.field.value = this.described[this.question].how.schema.default;
        this.#show();
        changed();
      },
    });
    this.asked = asked;
    this.find = element("label", { class: "find" }, "Find", asked);
    const labels = SHOWN.map((name) => {
      const { schema, description } = described.nearest[name] ?? described.within[name];
      const field = this.#field(name, schema, () => {
        this.#show();
        changed();
        if (OF_READING.includes(name)) reread();
      });
      this.notes[name] = element("span", { class: "problem", role: "alert", hidden: true });
      const note = element("small", {}, NOTES[name] ?? description);
      const label = element("label", {}, LABELS[name], field, note, this.notes[name]);
      this.fields[name] = { field, schema, label };
      return label;
    });
    this.#show();
    this.panel = element(
      "fieldset",
      { class: "panel" },
      element("legend", {}, "Options"),
      element("div", { class: "two" }, labels),
    );
  }

  get question() {
    return this.asked.value;
  }

  // What the rows of the result are, if it is a summary: "observation" or "reference".
  get summary() {
    return this.question === "within" ? this.fields.summary.field.value : "";
  }

  // Whether all that has to be given is.
  get complete() {
    return this.question === "nearest" || this.fields.distance_m.field.value !== "";
  }

  // Show the options that the question has; others are hidden, and not sent.
  #show() {
    const without = { "": [], observation: ["near", "how"], reference: ["once", "near", "how"] }[this.summary];
    if (this.question === "nearest") without.push("summary");
    for (const [name, { field, label }] of Object.entries(this.fields)) {
      label.hidden = !(name in this.described[this.question]) || without.includes(name);
      field.disabled = label.hidden;
    }
  }

  #field(name, schema, onchange) {
    if (name === "summary") return choice("", SUMMARIES, { name, onchange });
    if (schema.enum) return choice(schema.default, schema.enum.map((one) => [one, one]), { name, onchange });
    if (schema.type === "boolean") {
      return choice(String(schema.default), [["false", "no"], ["true", "yes"]], { name, onchange });
    }
    return element("input", {
      name,
      type: "number",
      min: schema.minimum ?? 0,
      max: schema.maximum,
      step: schema.type === "integer" ? 1 : "any",
      value: schema.default ?? "",
      placeholder: name === "distance_m" ? "" : "none",
      required: name === "distance_m",
      onchange,
    });
  }

  // Those that have a value, with the types of the API.
  values() {
    const values = { question: this.question };
    for (const [name, { field, schema, label }] of Object.entries(this.fields)) {
      if (label.hidden || field.value === "") continue;
      if (name === "summary") Object.assign(values, { summary: { count: true }, summary_by: field.value });
      else if (schema.enum) values[name] = field.value;
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
