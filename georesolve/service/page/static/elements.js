// Elements of the document: what users and files say becomes text in it, never markup.

export function element(name, properties = {}, ...children) {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) one.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") one[key] = value;
    else one.setAttribute(key, value === true ? "" : value);
  }
  one.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return one;
}

export function table(headings, rows, about = {}) {
  const cell = (name) => (value, at) =>
    element(
      name,
      { class: about.numbers?.includes(at) && "number", scope: name === "th" && "col" },
      value ?? "",
    );
  return element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": about.label },
    element(
      "table",
      { class: about.class },
      element("thead", {}, element("tr", {}, headings.map(cell("th")))),
      element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell("td"))))),
    ),
  );
}

export function definitions(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return element("dl", {}, shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

export function choice(value, options, properties = {}) {
  const select = element(
    "select",
    properties,
    options.map(([key, text]) => element("option", { value: key }, text)),
  );
  select.value = value;
  return select;
}

const MOST_PLACES = 10;

// A problem as RFC 9457 tells it, with the places in a file where it lies; rows count from 0.
export function problemOf(problem) {
  const places = (problem.errors ?? []).filter((one) => one.file || one.column || one.row !== undefined);
  const shown = places.slice(0, MOST_PLACES).map((one) => [one.file, one.column, one.row, one.detail]);
  return element(
    "div",
    { class: "problem", role: "alert" },
    element("strong", {}, problem.title),
    element("p", {}, problem.detail),
    shown.length
      ? table(["file", "column", "row (from 0)", "what is wrong"], shown, { label: "places of the error" })
      : null,
    places.length > MOST_PLACES
      ? element("p", { class: "faint" }, `and ${places.length - MOST_PLACES} more places`)
      : null,
  );
}
