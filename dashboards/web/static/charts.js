// The charts over time. The last minutes come with the stream's begin; what comes
// later is kept while the page is open.
import { byID } from "./dom.js";
import { bytes, duration } from "./format.js";
import { colorOf, cssColor } from "./colors.js";

const maxPoints = 600;

// alone are the places of values that have none beside them: no line shows them.
function alone(plot, series) {
  const v = plot.data[series];
  return v.flatMap((y, i) => (y != null && v[i - 1] == null && v[i + 1] == null ? [i] : []));
}

// Where sizes are marked.
const powersOfTwo = Array.from({ length: 48 }, (_, i) => 2 ** i);

export class Charts {
  constructor() {
    this.plots = {};
    this.reset();
    new ResizeObserver(() => {
      for (const [id, p] of Object.entries(this.plots)) {
        const w = byID(id).clientWidth;
        if (w > 0 && w !== p.plot.width) p.plot.setSize({ width: w, height: p.plot.height });
      }
    }).observe(document.querySelector(".grid"));
  }

  reset() {
    this.seconds = [];
    this.past = [];
    this.names = [];
    this.now = 0;
    this.clear();
  }

  clear() {
    for (const p of Object.values(this.plots)) p.plot.destroy();
    this.plots = {};
  }

  add(e) {
    if (!e) return;
    this.now = e.now;
    this.seconds.push(...(e.history ?? []));
    this.seconds.splice(0, Math.max(0, this.seconds.length - maxPoints));
    this.past.push(...(e.memory.past ?? []));
    this.past.splice(0, Math.max(0, this.past.length - maxPoints));
    this.names = e.memory.names ?? [];
    this.draw();
  }

  restyle() {
    this.clear();
    this.draw();
  }

  draw() {
    this.lanes();
    this.memory();
  }

  lanes() {
    const names = [];
    for (const s of this.seconds) for (const l of s.lanes ?? []) if (!names.includes(l.name)) names.push(l.name);
    names.sort();
    names.splice(8);
    if (names.length === 0) return this.drop("lanes-time", "lanes-share");
    const x = this.seconds.map((s) => (s.t + 1e9 - this.now) / 1e9);
    const of = (name, f) => this.seconds.map((s) => {
      const l = (s.lanes ?? []).find((y) => y.name === name);
      return l && l.count > 0 ? f(l) : null;
    });
    const times = [], shares = [];
    for (const n of names) {
      times.push({ label: n + " p50", stroke: colorOf(n, "lane"), width: 2, data: of(n, (l) => l.p50) }, { label: n + " p99", stroke: colorOf(n, "lane"), width: 1, dash: [4, 3], data: of(n, (l) => l.p99) });
      shares.push({ label: n, stroke: colorOf(n, "lane"), width: 2, data: of(n, (l) => (100 * l.sum) / 1e9) });
    }
    this.plot("lanes-time", "p50, and p99 dashed", x, times, (v) => duration(v), 0);
    this.plot("lanes-share", "share of time", x, shares, (v) => v + " %", 0);
  }

  memory() {
    if (this.past.length === 0) return this.drop("memory-time");
    const x = this.past.map((p) => (p.t - this.now) / 1e9);
    // The largest sites of the latest look, one on top of the other.
    const last = this.past[this.past.length - 1].sites.map(([i]) => i);
    const at = this.past.map((p) => new Map(p.sites));
    const series = [];
    const sum = new Array(this.past.length).fill(0);
    for (const i of last) {
      at.forEach((m, j) => (sum[j] += m.get(i) ?? 0));
      series.unshift({ label: this.names[i] ?? "", stroke: colorOf(this.names[i] ?? "", "site"), fill: colorOf(this.names[i] ?? "", "site"), width: 1, data: [...sum] });
    }
    series.unshift({ label: "live", stroke: cssColor("ink"), fill: cssColor("line"), width: 1, data: this.past.map((p) => p.live) });
    series.unshift({ label: "with slack", stroke: cssColor("quiet"), width: 1, dash: [4, 3], data: this.past.map((p) => p.live + p.chunk + p.rounding) });
    series.push({ label: "peak", stroke: cssColor("bad"), width: 1, dash: [2, 4], data: this.past.map((p) => p.peak) });
    this.plot("memory-time", "live by call site", x, series, (v) => bytes(v), 0, powersOfTwo);
  }

  drop(...ids) {
    for (const id of ids) {
      this.plots[id]?.plot.destroy();
      delete this.plots[id];
    }
  }

  // plot draws series over seconds from now. A chart is made anew when its series
  // are others.
  plot(id, title, x, series, text, from, incrs) {
    const key = JSON.stringify(series.map((s) => [s.label, s.stroke]));
    const data = [x, ...series.map((s) => s.data)];
    const p = this.plots[id];
    if (p?.key === key) return p.plot.setData(data);
    this.drop(id);
    const box = byID(id);
    if (box.clientWidth === 0) return;
    const axis = { stroke: cssColor("quiet"), grid: { stroke: cssColor("line"), width: 1 }, ticks: { stroke: cssColor("line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot({
      width: box.clientWidth, height: 140, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false }, y: { range: (u, min, max) => [from, max > from ? max * 1.08 : from + 1] } },
      axes: [{ ...axis, size: 26, values: (u, vs) => vs.map((v) => (v === 0 ? "now" : v + " s")) }, { ...axis, incrs, size: 64, values: (u, vs) => vs.map(text), label: title, labelSize: 16, labelFont: "11px system-ui, sans-serif" }],
      series: [{}, ...series.map(({ label, stroke, fill, width, dash }) => ({ label, stroke, fill, width, dash, points: { size: 4, fill: stroke, filter: alone } }))],
    }, data, box);
    this.plots[id] = { key, plot };
  }
}
