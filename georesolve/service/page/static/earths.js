// Which observations have another nearest reference on the other Earth: the same question is asked there.

import { Problem, get, post, rowsIn } from "./api.js";
import { element, problemOf, table } from "./elements.js";
import { calledIn } from "./map.js";
import { count, many } from "./quantities.js";

const OTHER = { sphere: "wgs84", wgs84: "sphere" };
const SAID = { sphere: "on the sphere", wgs84: "on the ellipsoid" };
const MOST_LISTED = 1000;

// Both results have a row for each observation, in the same order.
async function differing(ours, theirs) {
  const found = [];
  const others = rowsIn(theirs);
  for await (const one of rowsIn(ours)) {
    const { value: other } = await others.next();
    if (one.reference !== other.reference) found.push([one, other]);
  }
  return found;
}

const answerIn = (row) => (row.reference === null ? [row.status.replaceAll("_", " "), ""] : [calledIn(row, "reference"), `${count(row.distance_m)} m`]);

function listOf(found, rows, { earth }) {
  const shown = found.slice(0, MOST_LISTED).map(([one, other]) => [calledIn(one, "observation"), ...answerIn(one), ...answerIn(other)]);
  const says = `${count(found.length)} of ${many(rows, "observation")} have another nearest ${SAID[OTHER[earth]]}`;
  return [
    element("p", {}, element("strong", {}, says), shown.length < found.length ? `, the first ${count(MOST_LISTED)}:` : "."),
    shown.length ? table(["observation", SAID[earth], "", SAID[OTHER[earth]], ""], shown, { class: "preview", numbers: [2, 4], label: "other nearest references" }) : null,
  ];
}

// A title and what stands below it. `inputs` are those of the process; `ended` waits for a job.
export function otherEarth(address, report, inputs, ended) {
  const { options } = report;
  const place = element("div", { "aria-live": "polite" });
  const ask = async () => {
    place.replaceChildren(element("p", { class: "faint" }, "The job runs."));
    const { datasets } = await get("datasets?limit=1000");
    const set = (digest) => {
      const dataset = datasets.find((one) => one.sha256 === digest)?.id;
      if (!dataset) throw new Problem({ title: "A set of this job is no dataset", detail: "it came with the request, was deleted, or is older than the 1000 newest: match the files on this page" });
      return { dataset };
    };
    const asked = Object.entries(options).filter(([name, value]) => name in inputs && value !== null);
    const sets = { observations: set(report.observations_sha256), references: set(report.references_sha256) };
    // What the first job kept is kept again: which rows these were, no result tells.
    const body = { ...Object.fromEntries(asked), ...sets, earth: OTHER[options.earth], on_invalid: "null" };
    const job = await post("processes/nearest/execution", { inputs: body }, { Prefer: "respond-async", "Idempotency-Key": `earth of ${address}` });
    const other = `jobs/${job.id}`;
    await ended(other);
    const found = await differing(address, other);
    place.replaceChildren(...listOf(found, report.rows, options).filter(Boolean), element("p", {}, element("a", { href: `?job=${job.id}` }, `The result ${SAID[OTHER[options.earth]]}`)));
  };
  const button = element("button", { type: "button" }, "List what differs");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await ask();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      place.replaceChildren(problemOf(error.document));
      button.disabled = false;
    }
  });
  const there = SAID[OTHER[options.earth]];
  const why = `The Earth is no sphere: where two references are about equally far, another one may be the nearest. A second job measures ${there}. The observations that have another nearest reference there are then listed here.`;
  return [`The same ${there}`, element("p", { class: "faint" }, why), element("div", { class: "row" }, button), place];
}
