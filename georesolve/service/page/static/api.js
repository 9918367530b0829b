// The service's own API, at addresses relative to the page. The browser sends the key by itself.

const RETRY_MS = 1000;

export class Problem extends Error {
  constructor(document) {
    super(document.detail);
    this.document = document;
  }
}

function problemOf(status, text) {
  try {
    return new Problem(JSON.parse(text));
  } catch {
    return new Problem({ title: `The service answered ${status}`, status, detail: text.slice(0, 500) });
  }
}

export const unreachable = () =>
  new Problem({
    title: "The service does not answer",
    detail: "the connection was lost: see whether the service runs, then load the page again",
  });

// A browser gives up what it asked for when its machine changes networks, so reading is tried twice.
async function answerOf(path, options = {}, tries = options.method ? 1 : 2) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (tries === 1) throw unreachable();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    return answerOf(path, options, tries - 1);
  }
  if (!answer.ok) throw problemOf(answer.status, await answer.text());
  return answer;
}

export async function get(path, options = {}) {
  return (await answerOf(path, { headers: { Accept: "application/json" }, ...options })).json();
}

export async function text(path) {
  return (await answerOf(path)).text();
}

export async function remove(path) {
  return (await answerOf(path, { method: "DELETE" })).text();
}

export async function post(path, body, headers = {}, options = {}) {
  headers = { "Content-Type": "application/json", Accept: "application/json", ...headers };
  return (await answerOf(path, { method: "POST", headers, body: JSON.stringify(body), ...options })).json();
}

export const patch = (path, body) => post(path, body, {}, { method: "PATCH" });

// The rows of the result of a job: its JSON has a row a line. What is not asked for is not read.
export async function* rowsIn(address) {
  const { body } = await answerOf(`${address}/results/matches.json`);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const lines = (rest + piece.value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("{")) yield JSON.parse(line.replace(/,$/, ""));
    }
  } finally {
    await reader.cancel();
  }
}

export async function rowsOfResult(address, most) {
  const rows = [];
  for await (const row of rowsIn(address)) if (rows.push(row) >= most) break;
  return rows;
}

// Health is told with 503, too, when the service cannot work.
export async function health() {
  try {
    return await (await fetch("readyz")).json();
  } catch {
    throw unreachable();
  }
}

// `fetch` does not tell how much of a body was sent.
export function upload(path, form, told, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.setRequestHeader("Accept", "application/json");
    request.upload.addEventListener("progress", (event) => told(event.loaded, event.total));
    request.addEventListener("load", () => {
      if (request.status < 300) resolve(JSON.parse(request.responseText));
      else reject(problemOf(request.status, request.responseText));
    });
    request.addEventListener("error", () => reject(unreachable()));
    request.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

export const isLive = ({ status }) => status === "accepted" || status === "running";

export const linkOf = (document, rel) => document.links.find((link) => link.rel === rel)?.href;
