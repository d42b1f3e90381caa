// What the timeline draws: steps as they come, laid out in rows.

// Places in a span's array on the wire.
const KIND = 0, NAME = 1, LANE = 2, CONTEXT = 3, STREAM = 4, ORDINAL = 5, PARENT = 6, START = 7, RAW = 8, CORRECTION = 9, LEAD = 10, GAP = 11, CALIBRATION = 12, PLACE = 13, LENGTH = 14, FLAGS = 15;

export const kinds = ["lane", "kernel", "graph"];
export const gaps = ["unknown", "queued", "starved"];
export const calibrations = ["none", "measured", "assumed"];

// What is held: a server sends no more at once.
const maxSteps = 2048;
const maxSpans = 20000;

// decode makes steps of an event's.
export function decode(event) {
  const names = event.names.map(([title, full]) => ({ title, full: full ?? title }));
  return event.steps.map((s) => {
    const step = s;
    step.spans = s.s.map((a) => ({
      step, kind: a[KIND], name: names[a[NAME]], lane: a[LANE] < 0 ? null : names[a[LANE]], context: a[CONTEXT], stream: a[STREAM],
      ordinal: a[ORDINAL], parent: a[PARENT], t0: a[START], raw: a[RAW], correction: a[CORRECTION], t1: a[START] + a[RAW] - a[CORRECTION],
      lead: a[LEAD], gap: a[GAP], calibration: a[CALIBRATION], place: a[PLACE], length: a[LENGTH], inGraph: (a[FLAGS] & 1) !== 0, shared: (a[FLAGS] & 2) !== 0,
    }));
    step.failures = (s.f ?? []).map(([kind, name, reason, t]) => ({ kind, name: names[name], reason, t }));
    delete step.s;
    delete step.f;
    return step;
  });
}

// Held is the last steps of a run.
export class Held {
  constructor() {
    this.steps = [];
    this.spans = 0;
  }

  add(steps) {
    for (const s of steps) {
      this.steps.push(s);
      this.spans += s.spans.length;
    }
    let drop = 0;
    while (drop < this.steps.length - 1 && (this.steps.length - drop > maxSteps || this.spans > maxSpans)) {
      this.spans -= this.steps[drop].spans.length;
      drop++;
    }
    if (drop > 0) this.steps.splice(0, drop);
  }
}

// Row is items in order of their starts.
class Row {
  constructor(label, kind, height) {
    this.label = label;
    this.kind = kind;
    this.height = height;
    this.items = [];
    this.ends = []; // the latest end up to each item, so that it can be searched
  }

  get end() {
    return this.ends[this.ends.length - 1];
  }

  push(it) {
    this.ends.push(Math.max(it.t1, this.end ?? -Infinity));
    this.items.push(it);
  }

  // firstFrom is the first item that may end after t.
  firstFrom(t) {
    let lo = 0, hi = this.items.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.ends[mid] <= t) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }
}

const maxStack = 12;

// stack lays items out in as many rows as their overlaps need, up to maxStack; the
// last one then holds what overlaps still. What overlaps by less than the
// uncertainty of its place does not.
function stack(items, label, kind, height) {
  items.sort((a, b) => a.t0 - b.t0 || b.t1 - a.t1);
  const rows = [];
  for (const it of items) {
    const slack = Math.max(it.place ?? 0, 500);
    let row = rows.find((r) => r.end <= it.t0 + slack);
    if (!row) {
      row = new Row(rows.length === 0 ? label : "", kind, height);
      if (rows.length < maxStack) rows.push(row);
      else row = rows[maxStack - 1];
    }
    row.push(it);
  }
  return rows;
}

// layout is the rows of steps: the host's parts, the steps on the GPU, and for each
// stream its lanes by depth, then its kernels.
export function layout(steps) {
  const host = [], extents = [];
  const streams = new Map();
  const contexts = new Set();
  for (const s of steps) {
    if (s.host >= 0) host.push({ t0: s.begin, t1: s.begin + s.host, step: s, host: true });
    let a = Infinity, z = -Infinity;
    const depth = new Map();
    for (const sp of s.spans) {
      a = Math.min(a, sp.t0);
      z = Math.max(z, sp.t1);
      contexts.add(sp.context);
      const key = sp.context * 65536 + sp.stream;
      let st = streams.get(key);
      if (!st) {
        st = { context: sp.context, stream: sp.stream, lanes: [], kernels: [] };
        streams.set(key, st);
      }
      if (sp.kind === 0) {
        const d = sp.parent ? Math.min((depth.get(sp.parent) ?? -1) + 1, 7) : 0;
        depth.set(sp.ordinal, d);
        (st.lanes[d] ??= []).push(sp);
      } else st.kernels.push(sp);
    }
    if (z > a) extents.push({ t0: a, t1: z, step: s, extent: true });
  }
  const rows = [...stack(host, "host", "host", 16), ...stack(extents, "steps on GPU", "extent", 12)];
  for (const key of [...streams.keys()].sort((x, y) => x - y)) {
    const st = streams.get(key);
    const name = (contexts.size > 1 ? "GPU " + st.context + " " : "") + "stream " + st.stream;
    st.lanes.forEach((items, d) => {
      const rs = stack(items, d === 0 ? name : "", "lane", 20);
      if (d === 0) for (const r of rs) r.gaps = rs.length === 1;
      rows.push(...rs);
    });
    if (st.kernels.length > 0) rows.push(...stack(st.kernels, "kernels", "kernel", 16));
  }
  return rows;
}
