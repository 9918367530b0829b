// A job: how far it is while it runs, and then what it did and where its result is.

import { Problem, get, linkOf, remove } from "./api.js";
import { definitions, element, problemOf, table } from "./elements.js";
import { commandsOf } from "./commands.js";
import { histogramOf } from "./histogram.js";
import { mapOf } from "./map.js";
import { age, bytes, count, inRows, seconds, time } from "./quantities.js";

const LIVE = ["accepted", "running"];
const FORMATS = {
  "matches.parquet": "Parquet",
  "matches.csv": "CSV",
  "matches.arrows": "Arrow stream",
  "matches.json": "JSON",
  "matches.geojson": "GeoJSON points",
  "matches.geojson?geometry=line": "GeoJSON lines",
};

export async function showJob(main, query) {
  const id = query.get("job");
  const address = `jobs/${encodeURIComponent(id)}`;
  document.title = `Job ${id.slice(0, 8)} · georesolve`;
  const job = await get(address);
  const state = element("div", { "aria-live": "polite" });
  const outcome = element("div");
  main.replaceChildren(element("h1", {}, `Job ${id}`), state, outcome);
  const tell = (told) => state.replaceChildren(...stateOf(told, address));
  tell(job);
  if (LIVE.includes(job.status)) tell(await ended(address, tell));
  await showOutcome(outcome, await get(address), address);
}

// Wait for the end of a job, told of every step.
function ended(address, tell) {
  return new Promise((resolve) => {
    const events = new EventSource(`${address}/events`);
    for (const kind of ["status", "progress"]) {
      events.addEventListener(kind, (event) => tell(JSON.parse(event.data)));
    }
    events.addEventListener("end", (event) => {
      events.close();
      resolve(JSON.parse(event.data));
    });
    // A stream that the service refuses is not opened again by the browser.
    events.addEventListener("error", async () => {
      if (events.readyState !== EventSource.CLOSED) return;
      const job = await get(address);
      if (LIVE.includes(job.status)) setTimeout(() => location.reload(), 2000);
      else resolve(job);
    });
  });
}

function stateOf(job, address) {
  const shown = [
    definitions([
      ["status", job.status],
      ["message", job.message],
      ["rows", count(job.rows)],
      ["accepted", `${time(job.created)} (${age(job.created)})`],
      ["took", job.finished && job.started && seconds((Date.parse(job.finished) - Date.parse(job.started)) / 1000)],
      ["kept until", job.expires && job.status === "successful" && time(job.expires)],
      ["key", job.owner],
    ]),
  ];
  if (LIVE.includes(job.status)) {
    const rate = job.rows_a_second && `${count(job.rows_a_second)} a second`;
    const left = job.seconds_left !== undefined && `about ${seconds(job.seconds_left)} left`;
    const says = [`${count(job.rows_done)} of ${inRows(job.rows)}`, rate, left].filter(Boolean).join(", ");
    shown.push(
      element("progress", { max: 100, value: job.progress, "aria-label": "progress of the job" }),
      element("p", {}, says),
      element("div", { class: "row" }, element("button", { class: "wrong", onclick: () => remove(address) }, "Cancel")),
    );
  }
  return shown;
}

async function showOutcome(outcome, job, address) {
  if (job.status === "failed") {
    try {
      await get(`${address}/results/parts`);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      outcome.append(problemOf(error.document));
    }
  }
  if (job.status !== "successful") return;
  const [report, process] = await Promise.all([get(`${address}/report`), get(`processes/${job.processID}`)]);
  const kind = kindOf(job, report);
  const isCount = kind === "observation" || kind === "reference";
  const map = element("div", {}, element("p", { class: "faint" }, "The map is being drawn."));
  const shown = [];
  // A summary without a count has neither.
  if (!isCount || report.options.summary.count?.includes("count")) {
    const spread = await get(`${address}/distances`);
    shown.push(element("h2", {}, isCount ? "Counts" : "Distances"), ...histogramOf(spread, isCount), element("h2", {}, "Map"), map);
  }
  outcome.append(
    ...report.remarks.map((one) => element("p", { class: "remark" }, one)),
    element("h2", {}, "Rows by status"),
    countsOf(report),
    ...shown,
    element("h2", {}, "Result"),
    element("p", {}, `${inRows(report.rows)}, ${bytes(report.size_bytes)} as Parquet.`),
    downloadsOf(job, address, isCount),
    ...commandsOf(new URL(address, document.baseURI).href, isCount),
    element("h2", {}, "Options"),
    definitions(Object.entries(report.options).filter(([name]) => name in process.inputs).map(([name, value]) => [name, textOf(value)])),
    element("h2", {}, "Where the time went"),
    stagesOf(report),
    element("h2", {}, "Report"),
    definitions([
      ["verified", `${count(report.verification.observations)} observations searched again by another algorithm: the same to the last bit`],
      ["measure", report.measure],
      ["device", report.device],
      ["digest", report.digest],
      ["observations", report.observations_sha256],
      ["references", report.references_sha256],
      ["versions", Object.entries(report.versions).map((pair) => pair.join(" ")).join(", ")],
    ]),
    element("p", {}, element("a", { href: `${address}/report` }, "The report as JSON")),
    element(
      "div",
      { class: "row" },
      element("button", { class: "wrong", onclick: () => removed(address) }, "Remove job and result"),
    ),
  );
  if (shown.length) map.replaceChildren(...(await mapOf(address, kind)));
}

// What a row of the result is of: "nearest", "pair", or "observation" or "reference" of a summary.
function kindOf(job, report) {
  if (Object.keys(report.options.summary ?? {}).length) return report.options.summary_by;
  return job.processID === "within" ? "pair" : "nearest";
}

async function removed(address) {
  if (!confirm("Remove this job and its result for good?")) return;
  await remove(address);
  location.assign("?jobs");
}

function countsOf(report) {
  // Of an inner result those that are not matched are observations without a row.
  const share = (status, rows) =>
    report.options.how === "inner" && status !== "matched" ? "left out" : `${((100 * rows) / report.rows).toFixed(1)} %`;
  const rows = Object.entries(report.counts)
    .filter(([, rows]) => rows)
    .map(([status, rows]) => [status.replaceAll("_", " "), count(rows), share(status, rows)]);
  return table(["status", "rows", "share"], rows, { numbers: [1, 2], label: "rows by status" });
}

function downloadsOf(job, address, isCount) {
  const wanted = linkOf(job, "http://www.opengis.net/def/rel/ogc/1.0/results");
  return element(
    "div",
    { class: "row", "data-result": wanted },
    Object.entries(FORMATS).filter(([name]) => !(isCount && name.endsWith("line"))).map(([name, text]) =>
      element("a", { class: "button", href: `${address}/results/${name}`, download: name.split("?")[0] }, text),
    ),
  );
}

function stagesOf(report) {
  const stages = Object.entries(report.seconds).sort(([, one], [, other]) => other - one);
  const most = stages[0]?.[1] || 1;
  const rows = stages.map(([name, spent]) => [
    name.replaceAll("_", " "),
    seconds(spent),
    element("meter", { min: 0, max: most, value: spent, "aria-label": `${name}: ${seconds(spent)}` }),
  ]);
  return table(["stage", "time", ""], rows, { class: "bars", numbers: [1], label: "time by stage" });
}

function textOf(value) {
  if (Array.isArray(value)) return value.join(", ");
  if (value === null || typeof value !== "object") return value === null ? null : String(value);
  return Object.keys(value).length ? JSON.stringify(value) : null;
}
