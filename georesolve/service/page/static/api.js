// The service's own API, at addresses relative to the page. The browser sends the key by itself.

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

async function answerOf(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
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

// The first rows of the result of a job: its JSON has a row a line, and what comes behind is not read.
export async function rowsOfResult(address, most) {
  const reader = (await answerOf(`${address}/results/matches.json`)).body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let piece = await reader.read(); !piece.done && text.split("\n").length < most + 3; piece = await reader.read()) {
    text += decoder.decode(piece.value, { stream: true });
  }
  await reader.cancel();
  const lines = text.split("\n").slice(1, most + 1).map((line) => line.replace(/,$/, ""));
  return lines.filter((line) => line.startsWith("{") && line.endsWith("}")).map((line) => JSON.parse(line));
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

export const linkOf = (document, rel) => document.links.find((link) => link.rel === rel)?.href;
