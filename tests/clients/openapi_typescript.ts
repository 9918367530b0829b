// Uses the types that openapi-typescript makes: the service and two CSV files are arguments.

import { readFileSync } from "node:fs";
import createClient from "openapi-fetch";
import type { paths } from "./api.ts";

const [address, observations, references] = process.argv.slice(2);
const sets = JSON.parse(readFileSync(0, "utf8"));
const client = createClient<paths>({ baseUrl: address, headers: { Accept: "application/json" } });

const inputs = { ...sets, k: 2 };
const nearest = await client.POST("/nearest", { body: inputs });
const resolve = await client.POST("/resolve", {
  body: { observations, references, k: 2, columns: ["name"] },
  bodySerializer: (fields) => {
    const form = new FormData();
    form.append("k", String(fields.k));
    for (const name of fields.columns ?? []) form.append("columns", name);
    for (const role of ["observations", "references"] as const) {
      form.append(role, new Blob([readFileSync(fields[role])]), fields[role]);
    }
    return form;
  },
});
const execution = await client.POST("/processes/{id}/execution", {
  params: { path: { id: "nearest" } },
  body: { inputs },
});
const planned = { observations: 1000, references: 100, k: 2 };
const estimate = await client.POST("/estimate", { body: planned });

// The types tell CSV, which is a text, from JSON.
if (!Array.isArray(nearest.data)) throw new Error(JSON.stringify(nearest.error));
const metres: number | null = nearest.data[0].distance_m;
const seconds: number | undefined = estimate.data?.seconds;
if (metres === null || seconds === undefined) throw new Error("there is no answer");
const answers = { nearest, resolve, execution, estimate };
const data = Object.fromEntries(Object.entries(answers).map(([name, one]) => [name, one.data]));
console.log(JSON.stringify(data));
