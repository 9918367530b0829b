// A job: how far it is while it runs, and then where things lie, how far apart, and the result.

import { Problem, get, isLive, linkOf, patch, remove, rowsOfResult } from "./api.js";
import { definitions, element, folded, named, problemOf, rowsTable, table } from "./elements.js";
import { commandsOf } from "./commands.js";
import { otherEarth } from "./earths.js";
import { histogramOf } from "./histogram.js";
import { DRAWING, mapOf } from "./map.js";
import { age, apart, bytes, count, inRows, lasted, seconds, time } from "./quantities.js";

const SHOWN_ROWS = 10;
const FORMATS = {
  "matches.parquet": "Parquet",
  "matches.csv": "CSV",
  "matches.geojson": "GeoJSON points",
  "matches.geojson?geometry=line": "GeoJSON lines",
  "matches.arrows": "Arrow stream",
  "matches.json": "JSON",
};

export async function showJob(main, query) {
  const id = query.get("job");
  const address = `jobs/${encodeURIComponent(id)}`;
  const job = await get(address);
  const state = element("div", { "aria-live": "polite" });
  const outcome = element("div");
  main.classList.add("wide");
  main.replaceChildren(named(job.name, (name) => patch(address, { name })), state, outcome);
  const tell = (told) => state.replaceChildren(...stateOf(told, address));
  tell(job);
  if (isLive(job)) tell(await ended(address, tell));
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
      if (isLive(job)) setTimeout(() => location.reload(), 2000);
      else resolve(job);
    });
  });
}

function stateOf(job, address) {
  const facts = [
    job.finished && job.started && `took ${seconds(lasted(job))}`,
    `accepted ${age(job.created)}`,
    job.expires && job.status === "successful" && `kept until ${time(job.expires)}`,
    job.owner && `key ${job.owner}`,
  ];
  const shown = [element("p", { class: "faint" }, element("span", { class: `status ${job.status}` }, job.status), " ", facts.filter(Boolean).join(" · "))];
  if (isLive(job)) {
    const rate = job.rows_a_second && `${count(job.rows_a_second)} a second`;
    const left = job.seconds_left !== undefined && `about ${seconds(job.seconds_left)} left`;
    const says = [job.rows_done ? `${count(job.rows_done)} of ${inRows(job.rows)}` : job.message, rate, left].filter(Boolean).join(", ");
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
  if (job.status !== "successful") {
    if (!isLive(job)) outcome.append(folded("Details", definitions([["id", job.id], ["message", job.message]])));
    return;
  }
  const [report, process] = await Promise.all([get(`${address}/report`), get(`processes/${job.processID}`)]);
  const kind = kindOf(job, report);
  const isCount = kind === "observation" || kind === "reference";
  // A summary without a count has neither map nor histogram.
  const isDrawn = !isCount || report.options.summary.count?.includes("count");
  const told = (row) => (report.time_unit && row.time_apart !== null ? { ...row, time_apart: apart(row.time_apart, report.time_unit) } : row);
  const map = element("div", {}, element("p", { class: "faint" }, DRAWING));
  const rows = element("div", { class: "first" });
  const spread = isDrawn ? await get(`${address}/distances`) : null;
  outcome.append(
    ...report.remarks.map((one) => element("p", { class: "remark" }, one)),
    element(
      "div",
      { class: isDrawn ? "beside" : null },
      isDrawn ? map : null,
      element(
        "div",
        {},
        element("section", { class: "card" }, element("h2", {}, "Rows by status"), countsOf(report)),
        isDrawn ? element("section", { class: "card" }, element("h2", {}, isCount ? "Counts" : kind === "nearest" && report.options.k > 1 ? "Distances to the nearest" : "Distances"), histogramOf(spread, isCount)) : null,
        element("section", { class: "card" }, element("h2", {}, "Download"), element("p", { class: "faint" }, `${inRows(report.rows)}, ${bytes(report.size_bytes)} as Parquet`), downloadsOf(job, address, isCount)),
      ),
      rows,
    ),
    ...(hasOtherEarth(kind, report) ? [folded(...otherEarth(address, report, process.inputs, (other) => ended(other, () => {})))] : []),
    folded("From a program", ...commandsOf(new URL(address, document.baseURI).href, isCount)),
    folded("Options", definitions(Object.entries({ ...report.options, ...report.options.filters }).filter(([name]) => name in process.inputs).map(([name, value]) => [name, textOf(value)]))),
    folded("Where the time went", ...stagesOf(job, report)),
    folded(
      "Digests, versions, verification",
      definitions([
        ["id", job.id],
        ["verified", `${count(report.verification.observations)} observations searched again by another algorithm: the same to the last bit`],
        ["measure", report.measure],
        ["device", report.device],
        ["search", report.search],
        ["digest", report.digest],
        ["observations", report.observations_sha256],
        ["references", report.references_sha256],
        ["versions", Object.entries(report.versions).map((pair) => pair.join(" ")).join(", ")],
      ]),
      element("p", {}, element("a", { href: `${address}/report` }, "The report as JSON")),
    ),
    element("div", { class: "row" }, element("button", { class: "wrong", onclick: () => removed(address) }, "Remove job and result")),
  );
  if (isDrawn) map.replaceChildren(...(await mapOf(address, kind, report, told)));
  const first = (await rowsOfResult(address, SHOWN_ROWS)).map(told);
  // What was taken along comes first: a phone shows a few columns.
  const shown = first.map((row) => ({ ...Object.fromEntries(Object.entries(row).filter(([name]) => /^(observation|reference)_/.test(name))), ...row }));
  if (first.length) rows.append(element("h2", {}, first.length < report.rows ? "First rows" : "Rows"), rowsTable(shown, "first rows of the result"));
}

// What a row of the result is of: "nearest", "pair", or "observation" or "reference" of a summary.
function kindOf(job, report) {
  if (Object.keys(report.options.summary ?? {}).length) return report.options.summary_by;
  return job.processID === "within" ? "pair" : "nearest";
}

// A result that has a row for each observation on a sphere and on the ellipsoid, of options that can be
// asked again as they are told: to lines and polygons distances are measured on a sphere alone.
const hasOtherEarth = (kind, { options, geometry }) => kind === "nearest" && options.k === 1 && options.how === "left" && !options.filters && !geometry;

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
      // Counts of polygons have these.
      element("a", { class: "button", href: `${address}/results/${name}`, download: true }, isCount ? text.replace(" points", "") : text),
    ),
  );
}

// The clock's time from the acceptance of a job to its end adds up; that of its workers, who may work
// side by side, and of what came before it stands apart.
function stagesOf(job, report) {
  const { queue = 0, partitions = 0, assemble = 0, compile = 0, ...others } = report.seconds;
  const compiling = Math.min(compile, partitions);
  const took = lasted(job);
  const clock = [
    ["waiting for its turn", queue],
    ...(compiling ? [["preparing for questions of this kind, once on this machine (kernels are compiled)", compiling]] : []),
    ["search by the workers, handed out by Dask", partitions - compiling],
    ["the result is put together", assemble],
    ["starting, checking, noting", Math.max(0, took - partitions - assemble)],
  ];
  const all = clock.reduce((sum, [, spent]) => sum + spent, 0);
  const meter = (name, spent, most) => [name, seconds(spent), element("meter", { min: 0, max: most || 1, value: spent, "aria-label": `${name}: ${seconds(spent)}` })];
  const words = ([name, spent]) => `${name.replaceAll("_", " of ")} ${seconds(spent)}`;
  const isBefore = ([name]) => /_(observations|references)$/.test(name);
  const before = Object.entries(others).filter(isBefore).map(words);
  const work = Object.entries(others).filter((one) => !isBefore(one)).map(words);
  const chunks = Object.values(report.chunks_by_worker).reduce((sum, one) => sum + one, 0);
  return [
    table(["by the clock", "time", ""], [...clock.map((one) => meter(...one, all)), ["from accepted to done", seconds(all), ""]], { class: "bars", numbers: [1], label: "time by stage" }),
    work.length ? element("p", { class: "faint" }, `The workers' own time${chunks > 1 ? `, added up over ${count(chunks)} chunks that run side by side: it may be more than the clock's` : ", which is less by what Dask takes"}: ${work.join(", ")}.`) : null,
    before.length ? element("p", { class: "faint" }, `Before the job, when the sets were sent: ${before.join(", ")}.`) : null,
  ];
}

function textOf(value) {
  if (Array.isArray(value)) return value.join(", ");
  if (value === null || typeof value !== "object") return value === null ? null : String(value);
  return Object.keys(value).length ? JSON.stringify(value) : null;
}
