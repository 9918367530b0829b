// The page that the address names: `?match`, `?jobs`, `?job=ID`, `?datasets`, `?dataset=ID`, `?cluster`.

import { Problem } from "./api.js";
import { showCluster } from "./cluster.js";
import { showDataset, showDatasets } from "./datasets.js";
import { element, problemOf } from "./elements.js";
import { showJob } from "./job.js";
import { showJobs } from "./jobs.js";
import { showMatch } from "./match.js";

const PAGES = { match: showMatch, jobs: showJobs, job: showJob, datasets: showDatasets, dataset: showDataset, cluster: showCluster };
const LISTS = { job: "jobs", dataset: "datasets" };

const query = new URLSearchParams(location.search);
const name = Object.keys(PAGES).find((one) => query.has(one)) ?? "match";
const main = document.getElementById("main");

// What is thrown anywhere is shown: a page that quietly stops would be trusted.
function show(error) {
  if (error?.name === "AbortError") return;
  const problem = error instanceof Problem ? error.document : { title: "The page failed", detail: String(error) };
  if (problem.status === 401) problem.detail += "; load the page again, and the browser asks for another";
  const heading = main.querySelector("h1");
  const above = heading?.closest(".named") ?? heading;
  if (above) above.after(problemOf(problem));
  else main.prepend(problemOf(problem));
}

addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  show(event.reason);
});

for (const link of document.querySelectorAll("nav a")) {
  const is = link.getAttribute("href") === `?${LISTS[name] ?? name}`;
  if (is) link.setAttribute("aria-current", name in LISTS ? "true" : "page");
}
main.replaceChildren(element("h1", {}, "…"));
try {
  await PAGES[name](main, query);
} catch (error) {
  main.replaceChildren(element("h1", {}, name[0].toUpperCase() + name.slice(1)));
  show(error);
}
