// The registered datasets, the newest first: each can be looked at, renamed, matched and deleted.

import { get, linkOf, patch, remove } from "./api.js";
import { definitions, element, named, rowsTable, table } from "./elements.js";
import { age, bytes, count, inRows, time } from "./quantities.js";

const SHOWN_ROWS = 20;

function rowOf(one, again) {
  const address = `datasets/${encodeURIComponent(one.id)}`;
  const remover = element("button", { type: "button", class: "quiet wrong", "aria-label": `delete ${one.name}` }, "Delete");
  remover.addEventListener("click", async () => {
    // The newest version of a name goes with all of them.
    const all = one.names.find((name) => !name.includes("@"));
    if (!confirm(`Delete the dataset ${one.name}${all ? ` and all versions of ${all}` : ""} for good? Results made with it stay.`)) return;
    // A name of another owner's may be one of the caller's own, too.
    await remove(all && one.is_own ? `datasets/${encodeURIComponent(all)}` : address);
    await again();
  });
  return [
    element("a", { href: `?dataset=${encodeURIComponent(one.id)}` }, one.name),
    inRows(one.rows),
    bytes(one.size_bytes),
    age(one.created),
    one.expires ? `kept until ${time(one.expires)}` : "kept until deleted",
    remover,
    one.owner,
  ];
}

export async function showDatasets(main, query) {
  document.title = "Datasets · georesolve";
  const cursor = query.get("cursor");
  const list = element("div");
  const look = async () => {
    const page = await get(`datasets?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
    const has = page.datasets.some((one) => one.owner);
    const headings = ["dataset", "rows", "size", "sent", "kept", "", ...(has ? ["key"] : [])];
    const next = linkOf(page, "next");
    const room = page.quota_bytes ? ` of ${bytes(page.quota_bytes)}` : "";
    list.replaceChildren(
      element("p", { class: "faint" }, `Datasets and results take ${bytes(page.used_bytes)}${room}.`),
      page.datasets.length
        ? table(headings, page.datasets.map((one) => rowOf(one, look).slice(0, headings.length)), { class: "list", numbers: [1, 2], label: "datasets" })
        : element("p", {}, "There are no datasets yet: what you match is kept here for a while."),
    );
    if (next) {
      const further = new URL(next).searchParams.get("cursor");
      list.append(element("p", {}, element("a", { href: `?datasets&cursor=${encodeURIComponent(further)}` }, "Older datasets")));
    }
  };
  await look();
  main.replaceChildren(element("h1", {}, "Datasets"), list);
}

export async function showDataset(main, query) {
  const address = `datasets/${encodeURIComponent(query.get("dataset"))}`;
  const [one, rows] = await Promise.all([get(address), get(`${address}/rows?most=${SHOWN_ROWS}`)]);
  main.classList.add("wide");
  main.replaceChildren(
    named(one.name, (name) => patch(address, { name })),
    element("p", { class: "faint" }, [inRows(one.rows), bytes(one.size_bytes), `sent ${age(one.created)}`, one.expires ? `kept until ${time(one.expires)}` : null].filter(Boolean).join(" · ")),
    element(
      "div",
      { class: "row" },
      ...["observations", "references"].map((role) => element("a", { class: "button", href: `?match&${role}=${encodeURIComponent(one.id)}` }, `Match as ${role}`)),
      element("a", { class: "button", href: `${address}/data.parquet`, download: true }, "Download as Parquet"),
    ),
    element("h2", {}, rows.length < one.rows ? "First rows" : "Rows"),
    rowsTable(rows, "first rows of the dataset", one),
    element("h2", {}, "Details"),
    definitions([
      ["stands for it", one.names.join(", ")],
      ["rows without valid coordinates", one.invalid_rows ? count(one.invalid_rows) : null],
      ["id", one.id],
      ["digest", one.sha256],
    ]),
  );
}
