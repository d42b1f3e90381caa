// Numbers and times as text.

const groups = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

// count is a whole number with its thousands apart.
export function count(n) {
  return groups.format(n);
}

// exact is nanoseconds, all of them.
export function exact(ns) {
  return count(ns) + " ns";
}

// duration is nanoseconds with three significant digits.
export function duration(ns) {
  const a = Math.abs(ns);
  if (a < 999.5) return Math.round(ns) + " ns";
  for (const [unit, size] of [["µs", 1e3], ["ms", 1e6], ["s", 1e9]]) {
    const v = ns / size;
    if (Math.abs(v) < 999.5 || unit === "s") return digits(v) + " " + unit;
  }
  return "";
}

function digits(v) {
  const a = Math.abs(v);
  return a >= 1000 ? count(v) : v.toFixed(a < 9.995 ? 2 : a < 99.95 ? 1 : 0);
}

// bytes is a size with three significant digits.
export function bytes(n) {
  let v = n;
  let unit = "B";
  for (const u of ["KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(v) < 1000) break;
    v /= 1024;
    unit = u;
  }
  return (unit === "B" ? count(v) : digits(v)) + " " + unit;
}

// tick is a marked value of an axis: no more digits than it has.
export function tick(text) {
  return text.replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ").replace(/^0 .*/, "0");
}

// share is a part of a whole.
export function share(part, whole) {
  return whole > 0 ? ((100 * part) / whole).toFixed(1) + " %" : "-";
}

// clock is the time of day of a time of the run, with microseconds.
export function clock(baseUnixNS, ns) {
  const unixUS = Number((BigInt(baseUnixNS) + BigInt(Math.round(ns))) / 1000n);
  const d = new Date(unixUS / 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(unixUS % 1000000).padStart(6, "0")}`;
}
