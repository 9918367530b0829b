// Two sets and the options: what each set is, what the job would take, and its start.

import { Problem, get, post } from "./api.js";
import { element, problemOf } from "./elements.js";
import { MatchOptions } from "./options.js";
import { bytes, inRows, seconds } from "./quantities.js";
import { PointSet } from "./set.js";

const PAUSE_MS = 250;

export async function showMatch(main, query) {
  document.title = "Match · georesolve";
  const [process, registered] = await Promise.all([get("processes/nearest"), get("datasets?limit=1000")]);
  const estimate = element("div", { "aria-live": "polite" }, element("p", { class: "faint" }, "Give both sets first."));
  // Enabled whatever changes: a click that makes a field lose the focus, and change, still counts.
  const go = element("button", { class: "main", type: "submit" }, "Match");
  const sets = {};
  let timer = 0;
  let asking = new AbortController();

  const changed = () => {
    const address = new URLSearchParams({ match: "" });
    for (const [role, set] of Object.entries(sets)) if (set.dataset) address.set(role, set.dataset.id);
    history.replaceState(null, "", `?${address.toString().replace("match=", "match")}`);
    asking.abort();
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE_MS);
  };
  const options = new MatchOptions(process.inputs, changed, () => {
    for (const set of Object.values(sets)) if (set.file && !set.dataset) set.read();
  });
  for (const role of ["observations", "references"]) {
    sets[role] = new PointSet(role, registered.datasets, () => options.reading(), changed);
  }
  const inputs = () => ({
    observations: { dataset: sets.observations.dataset.id },
    references: { dataset: sets.references.dataset.id },
    ...(sets.observations.carried.length ? { observation_columns: sets.observations.carried } : {}),
    ...(sets.references.carried.length ? { columns: sets.references.carried } : {}),
    ...options.values(),
  });

  function refused(error) {
    if (!(error instanceof Problem)) throw error;
    options.mark(error.document.errors ?? []);
    estimate.replaceChildren(problemOf(error.document));
  }

  // Tell what the job would take, or what is wrong; returns whether it fits.
  async function ask() {
    if (!sets.observations.dataset || !sets.references.dataset) {
      estimate.replaceChildren(element("p", { class: "faint" }, "Give both sets first."));
      return false;
    }
    asking.abort();
    asking = new AbortController();
    options.mark([]);
    try {
      const found = await post("estimate", { inputs: inputs() }, {}, { signal: asking.signal });
      const workers = found.devices === 1 ? "1 worker" : `${found.devices} workers`;
      estimate.replaceChildren(
        element(
          "p",
          {},
          `${inRows(found.rows)}, ${bytes(found.bytes_out)}, about ${seconds(found.seconds)} on ${workers}.`,
        ),
        ...found.obstacles.map((one) => element("p", { class: "problem" }, one)),
      );
      return found.fits;
    } catch (error) {
      if (error.name !== "AbortError") refused(error);
      return false;
    }
  }

  async function start(event) {
    event.preventDefault();
    go.disabled = true;
    try {
      await Promise.all(Object.values(sets).map((set) => set.known));
      clearTimeout(timer);
      if (!(await ask())) return;
      const headers = { Prefer: "respond-async" };
      const job = await post("processes/nearest/execution", { inputs: inputs() }, headers);
      location.assign(`?job=${encodeURIComponent(job.id)}`);
    } catch (error) {
      refused(error);
    } finally {
      go.disabled = false;
    }
  }

  main.replaceChildren(
    element("h1", {}, "Match"),
    element(
      "p",
      {},
      "For every observation, the nearest reference: exact, on a sphere. Files are Parquet, CSV, GeoJSON or Arrow streams, with coordinates in degrees.",
    ),
    element(
      "form",
      { onsubmit: start },
      element("div", { class: "two" }, sets.observations.panel, sets.references.panel),
      options.panel,
      element("h2", {}, "What it will take"),
      estimate,
      element("div", { class: "row" }, go),
    ),
  );
  for (const [role, set] of Object.entries(sets)) if (query.get(role)) await set.choose(query.get(role));
}
