// The first rows of a CSV file, as texts; other formats the service alone can read.

const SLICE = 1 << 16;
const MOST_ROWS = 6;

export async function rowsOf(file) {
  if (!/\.csv$/i.test(file.name)) return null;
  const text = await file.slice(0, SLICE).text();
  // Excel names the delimiter in a line of its own.
  const named = /^sep=([,;\t|])\s*?\n/i.exec(text);
  const start = named ? named[0].length : 0;
  const first = text.slice(start).split("\n", 1)[0];
  const delimiter = named?.[1] ?? [",", ";", "\t"].find((one) => first.includes(one)) ?? ",";
  const rows = [[]];
  let field = "";
  let quoted = false;
  for (let at = start; at < text.length && rows.length <= MOST_ROWS; at += 1) {
    const char = text[at];
    if (quoted) {
      if (char !== '"') field += char;
      else if (text[at + 1] === '"') field += text[(at += 1)];
      else quoted = false;
    } else if (char === '"') quoted = true;
    else if (char === delimiter) {
      rows.at(-1).push(field);
      field = "";
    } else if (char === "\n") {
      rows.at(-1).push(field.replace(/\r$/, ""));
      field = "";
      rows.push([]);
    } else field += char;
  }
  if (field) rows.at(-1).push(field);
  return rows.filter((row) => row.length).slice(0, MOST_ROWS);
}
