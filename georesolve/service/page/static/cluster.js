// What computes, as /readyz and /metrics know it.

import { health, text } from "./api.js";
import { definitions, element, table } from "./elements.js";
import { bytes, count, seconds } from "./quantities.js";

const LOOK_MS = 2000;
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;

// The samples of Prometheus' text format that have no histogram's bucket.
function samplesOf(metrics) {
  return metrics.split("\n").flatMap((line) => {
    const [, name, labels = "", value] = SAMPLE.exec(line) ?? [];
    if (!name || name.endsWith("_bucket")) return [];
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, text]) => [key, text]);
    return [{ name, labels: Object.fromEntries(pairs), value: Number(value) }];
  });
}

// Keys of the role user are told the status alone.
const withoutRole = (error) => {
  if (error.document?.status !== 403) throw error;
  return null;
};

export async function showCluster(main) {
  document.title = "Cluster · georesolve";
  const shown = element("div");
  const look = async () => {
    const [{ status, checks }, metrics] = await Promise.all([health(), text("metrics").catch(withoutRole)]);
    if (metrics === null) {
      const words = "Checks and figures are shown to keys of the roles admin and metrics.";
      shown.replaceChildren(element("section", { class: "card" }, definitions([["state", status]]), element("p", { class: "faint" }, words)));
      setTimeout(look, LOOK_MS);
      return;
    }
    const samples = samplesOf(metrics);
    const sum = (name, labels = {}) =>
      samples
        .filter((one) => one.name === name && Object.entries(labels).every(([key, value]) => one.labels[key] === value))
        .reduce((total, one) => total + one.value, 0);
    const workers = samples.find((one) => one.name === "georesolve_workers");
    const dashboard = checks.find((one) => one.name === "dashboard")?.href;
    const link = element("a", { href: dashboard ?? "" }, dashboard ?? "");
    const jobs = (state) => count(sum("georesolve_live_jobs", { status: state }));
    const state = element(
      "section",
      { class: "card" },
      definitions([
        ["state", status],
        ["workers", workers ? `${count(workers.value)} on ${workers.labels.device}` : "none"],
        ["jobs", `${jobs("running")} running, ${jobs("accepted")} waiting`],
        ["rate", `${count(sum("georesolve_rows_per_second"))} observations a second`],
        ["resolved", `${count(sum("georesolve_rows_in_total"))} observations since the start`],
        ["scheduler", `answered ${seconds(sum("georesolve_scheduler_silence_seconds"))} ago`],
        ["disk", `${bytes(sum("georesolve_disk_bytes", { state: "free" }))} free, ${bytes(sum("georesolve_disk_bytes", { state: "used" }))} used`],
        ["memory", `${bytes(sum("process_resident_memory_bytes"))} in the process that answered`],
        ["received", bytes(sum("georesolve_received_bytes_total"))],
        ["Dask", dashboard && link],
      ]),
      dashboard
        ? element("p", { class: "faint" }, "The Dask dashboard has memory and load of each worker; an address on 127.0.0.1 opens on the machine of the service alone.")
        : null,
    );
    const found = table(
      ["check", "", "detail"],
      checks.map((one) => [one.name, element("span", { class: `status ${one.ok ? "successful" : "failed"}` }, one.ok ? "good" : "wrong"), one.detail]),
      { class: "checks", label: "checks of the service" },
    );
    shown.replaceChildren(state, element("section", { class: "card" }, element("h2", {}, "Checks"), found));
    setTimeout(look, LOOK_MS);
  };
  await look();
  main.replaceChildren(element("h1", {}, "Cluster"), shown);
}
