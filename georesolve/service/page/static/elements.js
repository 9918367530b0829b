// Elements of the document: what users and files say becomes text in it, never markup.

export function element(name, properties = {}, ...children) {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) one.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") one[key] = value;
    else one.setAttribute(key, value === true ? "" : value);
  }
  one.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return one;
}

export function svg(name, attributes, ...children) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  one.append(...children);
  return one;
}

export function table(headings, rows, about = {}) {
  const cell = (name) => (value, at) =>
    element(
      name,
      { class: about.numbers?.includes(at) && "number", scope: name === "th" && "col", title: typeof value === "string" && value.length > 24 ? value : null },
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

// Rows as objects; `dataset` says what some of its columns are. Points that stand there as coordinates
// are not shown a second time.
export function rowsTable(rows, label, { lat = "", lon, id_column: id, geometry } = {}) {
  const [y, x] = geometry ? ["of the first vertex", "of the first vertex"] : ["latitude", "longitude"];
  const roles = { [lat]: y, [lon]: x, ...(id?.toLowerCase() === "id" ? {} : { [id]: "id" }) };
  const points = lat.replace(/_lat$/, "");
  const names = Object.keys(rows[0] ?? {}).filter((name) => name === lat || name !== points);
  const numbers = [...names.keys()].filter((at) => rows.some((row) => typeof row[names[at]] === "number"));
  // As many digits as a person reads: of degrees to 10 cm, of metres to a millimetre.
  const text = (value, name) => {
    if (typeof value === "number") return String(Number(value.toFixed(/_m$/.test(name) ? 3 : 6)));
    // Of a time no fraction that is none.
    return value === null || typeof value !== "object" ? String(value ?? "–").replace(/(T\d\d:\d\d:\d\d)\.0+(?=Z|[+-]|$)/, "$1") : JSON.stringify(value);
  };
  const headings = names.map((name) => (roles[name] ? element("span", {}, name, element("small", {}, ` ${roles[name]}`)) : name));
  return table(headings, rows.map((row) => names.map((name) => text(row[name], name))), { class: "preview", numbers, label });
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

export function folded(title, ...children) {
  return element("details", { class: "card" }, element("summary", {}, title), ...children);
}

// A heading that names something, and a button to change the name.
export function named(name, rename) {
  document.title = `${name} · georesolve`;
  const heading = element("h1", {}, name);
  const change = element("button", { type: "button", class: "quiet", "aria-label": `rename ${name}` }, "Rename");
  const place = element("div", { class: "named" }, heading, change);
  const show = (called) => {
    const renamed = named(called, rename);
    place.replaceWith(renamed);
    renamed.querySelector("button").focus();
  };
  change.addEventListener("click", () => {
    const input = element("input", { value: name, maxlength: 200, "aria-label": "name" });
    const form = element("form", { class: "named" }, input, element("button", { class: "main" }, "Save"));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (input.value.trim()) show((await rename(input.value.trim())).name);
    });
    form.addEventListener("keydown", (event) => event.key === "Escape" && show(name));
    place.replaceChildren(form);
    input.select();
  });
  return place;
}

const MOST_PLACES = 10;

// A problem as RFC 9457 tells it, with the places in a file where it lies; rows count from 0.
export function problemOf(problem) {
  const places = (problem.errors ?? []).filter((one) => one.row !== undefined || one.line !== undefined);
  const where = (one) => [one.column && `column ${one.column}`, one.row !== undefined && `row ${one.row}`, one.line && `line ${one.line}`].filter(Boolean).join(", ");
  return element(
    "div",
    { class: "problem", role: "alert" },
    element("strong", {}, problem.title),
    element("p", {}, problem.detail),
    // One place is in the detail already.
    places.length > 1
      ? element("ul", {}, places.slice(0, MOST_PLACES).map((one) => element("li", {}, `${where(one)}: ${one.detail}`)))
      : null,
    places.length > MOST_PLACES ? element("p", { class: "faint" }, `and ${places.length - MOST_PLACES} more places`) : null,
  );
}
