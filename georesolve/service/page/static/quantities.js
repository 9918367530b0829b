// Quantities in words: counts, bytes, seconds, metres, times.

const GROUPS = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FEW = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (value) => GROUPS.format(value).replaceAll(",", "\u202f");

export const rangeOf = (first, last) => (first === last ? count(first) : `${count(first)} to ${count(last)}`);

export const many = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

export const inRows = (value) => many(value, "row");

export function bytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < units.length - 1; at += 1) value /= 1000;
  return `${FEW.format(value)} ${units[at]}`;
}

export function seconds(value) {
  if (value < 0.001) return "under 1 ms";
  if (value < 1) return `${FEW.format(value * 1000)} ms`;
  if (value < 120) return `${FEW.format(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 172800) return `${Math.round(value / 3600)} hours`;
  return `${Math.round(value / 86400)} days`;
}

// How far a reference is from its observation in time.
export function apart(value, unit) {
  const size = value * { s: 1, ms: 1e-3, us: 1e-6, ns: 1e-9 }[unit];
  return size ? `${seconds(Math.abs(size))} ${size < 0 ? "before" : "after"}` : "at the same time";
}

// Seconds that a job ran, or has run by now.
export const lasted = ({ started, finished }) => ((finished ? Date.parse(finished) : Date.now()) - Date.parse(started)) / 1000;

// Of an estimate no more digits are known.
export const roughly = (value) => seconds(Number(value.toPrecision(2)));

export function metres(value) {
  if (value === null || value === undefined) return "none";
  if (value >= 1000) return `${FEW.format(value / 1000).replaceAll(",", "\u202f")} km`;
  return `${FEW.format(value)} m`;
}

export const age = (time) => {
  const passed = Math.round((Date.now() - Date.parse(time)) / 1000);
  if (passed < 5) return "just now";
  return passed < 100 || passed > 7200 ? `${seconds(passed)} ago` : `${Math.round(passed / 60)} min ago`;
};

export const time = (text) => new Date(text).toLocaleString();

// 12.34° N: a latitude or a longitude, with the words for what lies below and above 0.
export const degrees = (value, below, above) => `${Math.abs(value).toFixed(2)}° ${value < 0 ? below : above}`;
