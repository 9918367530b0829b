// The list of jobs, the newest first.

import { get, isLive, linkOf } from "./api.js";
import { element, table } from "./elements.js";
import { age, inRows, lasted, seconds } from "./quantities.js";

const LOOK_MS = 2000;

function rowOf(job) {
  const link = element("a", { href: `?job=${encodeURIComponent(job.id)}` }, job.name);
  const state = isLive(job) ? `${job.status}, ${job.progress} %` : job.status;
  return [link, element("span", { class: `status ${job.status}` }, state), inRows(job.rows), age(job.created), job.started ? seconds(lasted(job)) : "", job.owner];
}

export async function showJobs(main, query) {
  document.title = "Jobs · georesolve";
  const cursor = query.get("cursor");
  const address = `jobs?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`;
  const list = element("div");
  const look = async () => {
    const page = await get(address);
    const next = linkOf(page, "next");
    const has = page.jobs.some((job) => job.owner);
    const headings = ["job", "status", "rows searched", "accepted", "took", ...(has ? ["key"] : [])];
    const rows = page.jobs.map((job) => rowOf(job).slice(0, headings.length));
    // What the keyboard stands on stays.
    if (list.contains(document.activeElement)) return void setTimeout(look, LOOK_MS);
    list.replaceChildren(
      rows.length
        ? table(headings, rows, { class: "list", numbers: [2], label: "jobs" })
        : element("p", {}, "There are no jobs yet. ", element("a", { href: "?match" }, "Match two files"), "."),
    );
    if (next) {
      const further = new URL(next).searchParams.get("cursor");
      list.append(element("p", {}, element("a", { href: `?jobs&cursor=${encodeURIComponent(further)}` }, "Older jobs")));
    }
    if (page.jobs.some(isLive)) setTimeout(look, LOOK_MS);
  };
  await look();
  main.replaceChildren(element("h1", {}, "Jobs"), list);
}
