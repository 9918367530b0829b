// Lines of curl, Python and DuckDB that fetch a result, to be copied.

import { element } from "./elements.js";

function textsOf(job, isCount) {
  const server = job.slice(0, job.lastIndexOf("/jobs/"));
  const id = job.slice(job.lastIndexOf("/") + 1);
  return {
    curl: `curl --fail-with-body ${job}/results/matches.parquet -o matches.parquet`,
    Python: [
      "import georesolve",
      "",
      `with georesolve.Client("${server}") as client:`,
      `    matches = client.job("${id}").to_pandas()`,
    ].join("\n"),
    DuckDB: [
      "INSTALL httpfs; LOAD httpfs;",
      `SELECT status, count(*), ${isCount ? 'max("count")' : "median(distance_m)"}`,
      `FROM '${job}/results/matches.parquet' GROUP BY status;`,
    ].join("\n"),
  };
}

const WITH_KEY =
  "Where a key is asked for: curl -H 'Authorization: Bearer KEY', Client(..., key=\"KEY\"), and in DuckDB CREATE SECRET (TYPE http, BEARER_TOKEN 'KEY').";

export function commandsOf(job, isCount) {
  const lines = Object.entries(textsOf(job, isCount)).flatMap(([name, text]) => {
    const copy = element("button", { type: "button", "aria-label": `copy the lines of ${name}` }, "Copy");
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    });
    return [
      element("div", { class: "row" }, element("h3", {}, name), copy),
      element("pre", { tabindex: 0, "aria-label": `lines of ${name}` }, text),
    ];
  });
  return [...lines, element("p", { class: "faint" }, WITH_KEY)];
}
