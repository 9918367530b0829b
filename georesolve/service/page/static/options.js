// The options of a match, a line each: where an option stands and what it says. Defaults, bounds and
// which question has it are what the service says of it.

import { choice, element } from "./elements.js";

const QUESTIONS = [
  ["nearest", "the nearest references"],
  ["within", "all references within a distance"],
];
const SUMMARIES = [
  ["", "pairs, nearest first"],
  ["observation", "a count for each observation"],
  ["reference", "a count for each reference"],
];
const UNITS = { m: 1, km: 1000, miles: 1609.344 };

// `first`: beside the question, all others under "More". `metres`: typed with a unit. `says`: what its
// choices do. `reads`: a file is read in another way. `without`: no option of results that are such
// counts. `with`: an option beside another that has a value. `typed`: what is typed becomes its value.
// `called` is one that is `required`, or `needed` beside others, and what is said where it is missing.
const OPTIONS = [
  { name: "k", first: true, label: "References for each observation (k)" },
  { name: "max_distance_m", first: true, metres: true, label: "Not farther than", empty: "no limit" },
  { name: "distance_m", first: true, metres: true, label: "Within", note: "one just as far is within", required: true, called: "the distance" },
  { name: "summary", first: true, label: "Result", choices: SUMMARIES, note: "counts make no pairs, however many these would be" },
  { name: "summed", first: true, with: "summary", label: "And sum, mean, least and largest of", typed: namesOf, columns: true, empty: "such as population", note: "columns of numbers that are counted, several with commas between" },
  { name: "exclude_self", label: "Leave out an observation's own row", note: "for a set that is matched with itself" },
  { name: "once", label: "Each pair once", note: "for a set that is matched with itself", without: ["reference"] },
  { name: "by", label: "Only where these columns are equal", typed: namesOf, columns: true, empty: "such as country", note: "of both files (kind, or kind = type where the names differ), several with commas between; points only", without: ["reference"] },
  { name: "time", label: "Only near in time: the column of times", typed: String, columns: true, empty: "none", note: "of both files, or seen = made where the names differ; points only", without: ["reference"] },
  { name: "max_time", with: "time", label: "Not farther apart in time than", typed: lengthOf, empty: "15min", note: "d, h, min, s, or a number for times that are numbers", called: "how far apart in time", needed: isOpenInTime },
  { name: "time_direction", with: "time", label: "References in time", says: { nearest: "before or after", backward: "not later than the observation", forward: "not earlier than the observation" } },
  { name: "allow_exact", with: "time", label: "Take references of the very same time", note: "" },
  { name: "rank_by", with: "time", label: "Which comes first", says: { distance: "the nearest", time: "the least time apart, then the nearest" } },
  { name: "near", label: "Add where the reference lies, and the bearing to it", note: "three more columns", without: ["observation", "reference"] },
  { name: "earth", label: "Measure on", note: "lines and polygons: on the sphere alone", says: { sphere: "a sphere", wgs84: "the ellipsoid of WGS 84, by geodesics" } },
  { name: "how", label: "Observations without a match", says: { left: "keep them, with a status", inner: "leave them out" }, without: ["observation", "reference"] },
  { name: "on_invalid", reads: true, label: "Rows with invalid coordinates", says: { error: "refuse the file and name them", null: "keep them, without a match" } },
  { name: "coordinates", reads: true, label: "Coordinates that look like no degrees", says: { check: "refuse them and say why", trust: "take all numbers for degrees" } },
  { name: "algorithm", label: "How to search", note: "the answer is the same", says: { auto: "as the service thinks best", tree: "down a tree", brute: "compare every pair" } },
];

export class MatchOptions {
  // `described` are the inputs of each question. `changed` is called with every change, `reread` when
  // files are to be read in another way.
  constructor(described, changed, reread) {
    this.described = described;
    this.fields = {};
    this.asked = choice("nearest", QUESTIONS, {
      name: "question",
      onchange: () => {
        this.fields.how.field.value = this.described[this.question].how.schema.default;
        this.#show();
        changed();
      },
    });
    for (const option of OPTIONS) {
      const { schema, description } = described.nearest[option.name] ?? described.within[option.name] ?? { schema: {} };
      const onchange = () => {
        this.#show();
        changed();
        if (option.reads) reread();
      };
      const wrong = element("span", { class: "wrong-field", role: "alert", hidden: true });
      const made = fieldOf(option, schema, onchange);
      // Choices that say what they do need no more words.
      const words = option.note ?? (option.says ? null : description);
      const note = words && element("small", {}, words);
      const isBox = schema.type === "boolean";
      const parts = isBox ? [made.shown, element("span", {}, option.label, note)] : [option.label, made.shown, note];
      const label = element("label", { class: isBox ? "check" : null }, parts, wrong);
      this.fields[option.name] = { ...made, option, label, wrong };
    }
    const labels = (first) => OPTIONS.filter((one) => Boolean(one.first) === first).map((one) => this.fields[one.name].label);
    this.more = element("details", {}, element("summary", {}, "More options"), element("div", { class: "fields" }, labels(false)));
    this.panel = element(
      "fieldset",
      { class: "card" },
      element("legend", {}, "Question"),
      element("div", { class: "fields" }, element("label", { class: "find" }, "Find", this.asked), labels(true)),
      this.more,
    );
    this.#show();
    this.first = new Map(this.#named.map((one) => [one, textOf(one)]));
  }

  get #named() {
    return [...this.panel.querySelectorAll("[name]")];
  }

  // What is filled in, by the names of the fields, where it is not as it was at first.
  get filled() {
    return this.#named.filter((one) => !one.disabled && textOf(one) !== this.first.get(one)).map((one) => [one.name, textOf(one)]);
  }

  // Fill in what `filled` told.
  fill(query) {
    for (const one of this.#named.filter(({ name }) => query.has(name))) {
      if (one.type === "checkbox") one.checked = query.get(one.name) === "true";
      else one.value = query.get(one.name);
      // What a list does not have, as of another version.
      if (one.selectedIndex === -1) one.value = this.first.get(one);
    }
    this.#show();
    this.more.open ||= this.filled.some(([name]) => this.fields[name] && !this.fields[name].option.first);
  }

  // Have a box checked that the user did not check.
  suggest(name) {
    const { field } = this.fields[name];
    field.checked = true;
    this.first.set(field, textOf(field));
  }

  get question() {
    return this.asked.value;
  }

  // What the rows of the result are, if it is a summary: "observation" or "reference".
  get summary() {
    return this.question === "within" ? this.fields.summary.field.value : "";
  }

  // The options that must be given, and are not.
  get missing() {
    const is = ({ option, label, field }) => !label.hidden && field.value === "" && (option.required || option.needed?.(this.fields));
    return Object.values(this.fields).filter(is);
  }

  // Show the options that the question has; others are hidden, and not sent.
  #show() {
    for (const { option, field, label } of Object.values(this.fields)) {
      const isOfSummary = ["summary", "summed"].includes(option.name);
      const isOfOther = isOfSummary ? this.question !== "within" : !(option.name in this.described[this.question]);
      label.hidden = isOfOther || Boolean(this.summary && option.without?.includes(this.summary)) || !this.#has(option.with);
      field.disabled = label.hidden;
    }
    this.fields.summed.field.setAttribute("list", `${this.summary === "reference" ? "observations" : "references"}-columns`);
  }

  // Whether another option has a value, if it takes one.
  #has(name) {
    return !name || (!this.fields[name].label.hidden && this.fields[name].field.value !== "");
  }

  // Those that have a value, with the types of the API.
  values() {
    const values = { question: this.question };
    for (const [name, { label, value }] of Object.entries(this.fields)) {
      const given = label.hidden ? undefined : value();
      if (given === undefined) continue;
      if (name === "summary") Object.assign(values, { summary: { count: true }, summary_by: given });
      else if (name === "summed") for (const one of given) values.summary[one] = ["sum", "mean", "min", "max"];
      else if (["by", "time"].includes(name)) Object.assign(values, ofEach(name, given));
      else values[name] = given;
    }
    return values;
  }

  // Those that say how a file is read.
  reading() {
    const reads = Object.entries(this.fields).filter(([, { option }]) => option.reads);
    return Object.fromEntries(reads.map(([name, { value }]) => [name, value()]));
  }

  // What else a file could be read with that a refusal names: words, and what sets it, for all files
  // that follow, so that it is seen.
  waysAround(way) {
    return Object.entries(this.fields).flatMap(([name, { option, field }]) =>
      option.reads ? Object.entries(option.says).filter(([value]) => way[name] === value).map(([value, words]) => [`${option.label}: ${words}`, () => ((field.value = value), (this.more.open = true))]) : [],
    );
  }

  // Mark the fields that hold what no value may be; returns whether there are none.
  check() {
    const wrong = Object.entries(this.fields).filter(([, { field, label }]) => !label.hidden && !field.validity.valid && !field.validity.valueMissing);
    return !this.mark(wrong.map(([name, { field }]) => ({ pointer: name, detail: field.validationMessage })));
  }

  // Put what was refused beside the field that it is about; returns whether there is one.
  mark(errors) {
    let found = false;
    // What is wrong with a summary is a column that was typed, if one was.
    const { label, field: summed } = this.fields.summed;
    const ofSummary = label.hidden || summed.value === "" ? "summary" : "summed";
    const nameOf = ({ pointer }) => pointer?.split("/").pop().replace(/^summary$/, ofSummary);
    for (const [name, { option, wrong, field }] of Object.entries(this.fields)) {
      const error = errors.find((one) => nameOf(one) === name);
      wrong.hidden = !error;
      wrong.textContent = error?.detail ?? "";
      if (error) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
      if (!error) continue;
      found = true;
      if (!option.first) this.more.open = true;
    }
    return found;
  }
}

// Whether a column of times alone restricts nothing.
function isOpenInTime({ time_direction: direction, allow_exact: exact, rank_by: rank }) {
  return direction.field.value === "nearest" && exact.field.checked && rank.field.value === "distance";
}

// What stands in a field, or whether a box is checked.
const textOf = (field) => (field.type === "checkbox" ? String(field.checked) : field.value);

function namesOf(text) {
  return text.split(",").map((one) => one.trim()).filter(Boolean);
}

// Columns of both sets: by one name, or by one of each with = between.
function ofEach(name, given) {
  const pairs = [given].flat().map((one) => one.split("=").map((part) => part.trim()));
  if (pairs.every((one) => one.length === 1)) return { [name]: given };
  const [own, theirs] = [0, -1].map((at) => pairs.map((one) => one.at(at)));
  const isList = Array.isArray(given);
  return { [`observation_${name}`]: isList ? own : own[0], [`reference_${name}`]: isList ? theirs : theirs[0] };
}

function lengthOf(text) {
  return Number.isNaN(Number(text)) ? text : Number(text);
}

// The field of an option, what is shown of it, and what its value is in the words of the API.
function fieldOf({ name, metres, choices, says, empty, required, typed, columns }, schema, onchange) {
  if (typed) {
    const field = element("input", { name, placeholder: empty, list: columns && "references-columns", spellcheck: false, onchange });
    return { field, shown: field, value: () => (field.value.trim() === "" ? undefined : typed(field.value.trim())) };
  }
  if (choices || schema.enum) {
    const field = choice(schema.default ?? "", choices ?? schema.enum.map((one) => [one, says?.[one] ?? one]), { name, onchange });
    return { field, shown: field, value: () => field.value || undefined };
  }
  if (schema.type === "boolean") {
    const field = element("input", { name, type: "checkbox", checked: schema.default, onchange });
    return { field, shown: field, value: () => field.checked };
  }
  const field = element("input", {
    name,
    type: "number",
    min: schema.minimum ?? 0,
    max: schema.maximum,
    step: schema.type === "integer" ? 1 : "any",
    value: schema.default ?? "",
    placeholder: empty,
    required,
    inputmode: "decimal",
    onchange,
  });
  if (!metres) return { field, shown: field, value: () => (field.value === "" ? undefined : Number(field.value)) };
  const unit = choice("km", Object.keys(UNITS).map((one) => [one, one]), { name: `${name}_unit`, "aria-label": "unit", onchange });
  // 1.1 km are 1100 m, and not a billionth more.
  const value = () => (field.value === "" ? undefined : Number((Number(field.value) * UNITS[unit.value]).toPrecision(15)));
  return { field, shown: element("span", { class: "measure" }, field, unit), value };
}
