// Two sets and the question: what each set is, what the job would take, and its start.

import { Problem, get, post } from "./api.js";
import { element, problemOf } from "./elements.js";
import { MatchOptions } from "./options.js";
import { bytes, count, inRows, roughly } from "./quantities.js";
import { PointSet } from "./set.js";

const PAUSE_MS = 250;
const SLOW_MS = 1500;
const AGAIN_MS = 2000;
const NOT_READY = "urn:georesolve:problem:not-ready";
const COLUMNS = { observations: "observation_columns", references: "columns" };

export async function showMatch(main, query) {
  document.title = "Match · georesolve";
  const [nearest, within, registered] = await Promise.all(
    ["processes/nearest", "processes/within", "datasets?limit=1000"].map((path) => get(path)),
  );
  const estimate = element("div", { class: "estimate", "aria-live": "polite" });
  // Enabled whatever changes: a click that makes a field lose the focus, and change, still counts.
  const go = element("button", { class: "main", type: "submit" }, "Match");
  const sets = {};
  let timer = 0;
  let pressed = false;
  let shaped = null;
  let isFilled = false;
  let asking = new AbortController();

  // Above the bar, which sticks below: a remark is long.
  const remarks = element("div", { "aria-live": "polite" });
  const show = (...shown) => {
    remarks.replaceChildren();
    estimate.removeAttribute("aria-busy");
    estimate.replaceChildren(...shown);
  };
  const tell = (words) => show(element("p", { class: "faint" }, words));
  // Back, a reload and a link have what was filled in.
  const note = () => {
    const address = new URLSearchParams({ match: "" });
    for (const [role, set] of Object.entries(sets)) {
      if (!set.dataset) continue;
      address.set(role, set.dataset.id);
      for (const name of set.carried.length ? set.carried : [""]) address.append(COLUMNS[role], name);
    }
    for (const [name, value] of options.filled) address.append(name, value);
    history.replaceState(null, "", `?${address.toString().replace("match=", "match")}`);
  };
  const changed = () => {
    for (const [role, set] of Object.entries(sets)) set.carry.hidden = !hasRows(role);
    // The map joins an observation to the nearest point of a shape, if the result has that.
    const dataset = sets.references?.dataset;
    if (dataset?.geometry && dataset.id !== shaped) options.suggest("near");
    shaped = dataset?.id;
    if (isFilled) note();
    asking.abort();
    clearTimeout(timer);
    estimate.setAttribute("aria-busy", "true");
    if (!pressed) timer = setTimeout(ask, PAUSE_MS);
  };
  // An estimate may be of another height than the last: it must not move a button that is pressed.
  go.addEventListener("pointerdown", () => (pressed = true));
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, () => {
      if (!pressed) return;
      pressed = false;
      changed();
    });
  }
  const options = new MatchOptions({ nearest: nearest.inputs, within: within.inputs }, changed, () => {
    for (const set of Object.values(sets)) if (set.file && !set.dataset) set.read();
  });
  for (const role of ["observations", "references"]) {
    sets[role] = new PointSet(role, registered.datasets, () => options, changed);
  }
  // Whether a row of the result is of one row of the set, so that it can take its columns along.
  const hasRows = (role) => !options.summary || `${options.summary}s` === role;
  const carried = (role) => (hasRows(role) && sets[role].carried.length ? { [COLUMNS[role]]: sets[role].carried } : {});
  const inputs = () => ({
    observations: { dataset: sets.observations.dataset.id },
    references: { dataset: sets.references.dataset.id },
    ...carried("observations"),
    ...carried("references"),
    ...options.values(),
  });

  // What was refused stands once: beside its field, with its set, or else here.
  function refused(error) {
    if (!(error instanceof Problem)) throw error;
    const { document } = error;
    const role = Object.keys(sets).find((one) => document.errors?.some((place) => place.file === one || place.pointer?.split("/").includes(one)));
    if (options.mark(document.errors ?? [])) tell("Mend what is marked above.");
    else if (role) {
      sets[role].refuse(document);
      tell(`Mend the ${role}.`);
    } else show(problemOf(document));
  }

  // A service that starts is asked again until it is ready.
  async function estimated(signal) {
    // Asked again as they are: once one of the sets goes, what waits here is aborted.
    const asked = { inputs: inputs() };
    for (;;) {
      const slow = setTimeout(tell, SLOW_MS, "A sample of both sets is searched. The first time this takes some seconds.");
      const found = await post("estimate", asked, {}, { signal }).catch((error) => error);
      clearTimeout(slow);
      if (!(found instanceof Error)) return found;
      if (found.document?.type !== NOT_READY) throw found;
      tell(`The service is not ready yet, and is asked again: ${found.message}.`);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }

  // Tell what the job would take, or what is wrong; returns whether it fits.
  async function ask() {
    asking.abort();
    asking = new AbortController();
    const without = Object.keys(sets).filter((role) => !sets[role].dataset);
    if (!options.check()) {
      tell("Mend what is marked above.");
      return false;
    }
    if (without.length || options.missing.length) {
      tell(`Give ${without.length > 1 ? "both sets" : (without[0] ?? options.missing[0].option.called)} first.`);
      return false;
    }
    try {
      const found = await estimated(asking.signal);
      const spread = typeof found.rows_spread === "number" ? ` (from a sample, ± ${count(found.rows_spread)})` : "";
      const first = found.seconds_compiling
        ? `the machine first prepares for questions of this kind, once: ${roughly(found.seconds_compiling)}, or longer if it is busy`
        : "the first job after a start, or with these references";
      show(
        element(
          "p",
          {},
          element("strong", {}, `${inRows(found.rows)}${spread}`),
          `, ${bytes(found.bytes_out)}; about ${roughly(found.seconds_warm)}, the first time ${roughly(found.seconds_cold)}`,
          element("small", { class: "faint" }, ` (${first})`),
        ),
        ...found.obstacles.map((one) => element("p", { class: "problem" }, one)),
        // What it is in short: a phone may not show what stands above.
        ...found.remarks.map((one) => element("p", { class: "wrong-field" }, `Look above: ${one.split(":")[0]}.`)),
      );
      remarks.append(...found.remarks.map((one) => element("p", { class: "remark" }, one)));
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
      if (!(await ask())) {
        options.missing[0]?.field.focus();
        return;
      }
      const headers = { Prefer: "respond-async" };
      const job = await post(`processes/${options.question}/execution`, { inputs: inputs() }, headers);
      location.assign(`?job=${encodeURIComponent(job.id)}`);
    } catch (error) {
      refused(error);
    } finally {
      go.disabled = false;
    }
  }

  tell("Give both sets first.");
  main.replaceChildren(
    element("h1", {}, "Match two sets"),
    element("p", { class: "faint" }, "For every observation the nearest references, or all within a distance: exact, on a sphere or on the ellipsoid."),
    element(
      "form",
      { onsubmit: start, novalidate: true },
      element("div", { class: "two" }, sets.observations.panel, sets.references.panel),
      options.panel,
      remarks,
      element("div", { class: "bar" }, estimate, go),
    ),
  );
  for (const [role, set] of Object.entries(sets)) {
    if (!query.get(role)) continue;
    await set.choose(query.get(role));
    if (query.has(COLUMNS[role])) set.carried = query.getAll(COLUMNS[role]);
  }
  options.fill(query);
  isFilled = true;
  changed();
}
