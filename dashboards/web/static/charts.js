// The charts over time. The last minutes come with the stream's begin; what comes
// later is kept while the page is open.
import { byID, tip } from "./dom.js";
import { bytes, duration, tick } from "./format.js";
import { colorOf, cssColor } from "./colors.js";

const maxPoints = 600;

// alone are the places of values that have none beside them: no line shows them.
function alone(plot, series) {
  const v = plot.data[series];
  return v.flatMap((y, i) => (y != null && v[i - 1] == null && v[i + 1] == null ? [i] : []));
}

// Where sizes and seconds are marked.
const powersOfTwo = Array.from({ length: 48 }, (_, i) => 2 ** i);
const seconds = [1, 2, 5, 10, 20, 30, 60, 120, 300];

const ago = (s) => (s === 0 ? "now" : s % 60 === 0 ? `${s / 60} min` : `${s} s`).replace("-", "−");

export class Charts {
  constructor() {
    this.plots = {};
    this.said = null; // the chart whose values are said
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
    this.drop(...Object.keys(this.plots));
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
    this.plot("lanes-time", "p50; dashed: p99", x, times, duration);
    this.plot("lanes-share", "share of time", x, shares, (v) => v.toFixed(1) + " %");
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
      const name = this.names[i] ?? "", color = colorOf(name, "site");
      series.unshift({ label: name, stroke: color, fill: color, width: 1, data: [...sum], own: at.map((m) => m.get(i) ?? 0) });
    }
    series.unshift({ label: "live", stroke: cssColor("ink"), fill: cssColor("line"), width: 1, data: this.past.map((p) => p.live) });
    series.unshift({ label: "with slack", stroke: cssColor("quiet"), width: 1, dash: [4, 3], data: this.past.map((p) => p.live + p.chunk + p.rounding) });
    series.push({ label: "peak", stroke: cssColor("bad"), width: 1, dash: [2, 4], data: this.past.map((p) => p.peak) });
    this.plot("memory-time", "live by call site", x, series, bytes, powersOfTwo);
  }

  drop(...ids) {
    for (const id of ids) {
      if (this.said === id) {
        this.said = null;
        tip(null);
      }
      this.plots[id]?.plot.destroy();
      delete this.plots[id];
    }
  }

  // plot draws series over seconds from now; the mouse on it has the values of a
  // moment said. A chart is made anew when its series are others.
  plot(id, title, x, series, text, incrs) {
    const key = JSON.stringify(series.map((s) => [s.label, s.stroke]));
    const data = [x, ...series.map((s) => s.data)];
    const p = this.plots[id];
    if (p?.key === key) {
      p.series = series;
      return p.plot.setData(data);
    }
    this.drop(id);
    const box = byID(id);
    if (box.clientWidth === 0) return;
    const axis = { stroke: cssColor("quiet"), grid: { stroke: cssColor("line"), width: 1 }, ticks: { stroke: cssColor("line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const said = (u) => {
      const i = u.cursor.idx, at = u.over.getBoundingClientRect();
      const inside = i != null && u.cursor.left >= 0;
      if (!inside && this.said === id) tip(null); // not what others say
      this.said = inside ? id : this.said === id ? null : this.said;
      if (!inside) return;
      const values = this.plots[id].series.map((s) => [s.label, (s.own ?? s.data)[i]]).filter(([, v]) => v != null);
      tip([ago(Math.round(u.data[0][i])), ...values.map(([name, v]) => `${name}: ${text(v)}`)], at.left + u.cursor.left, at.top + u.cursor.top);
    };
    const plot = new uPlot({
      width: box.clientWidth, height: 140, legend: { show: false }, cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      hooks: { setCursor: [said] },
      scales: { x: { time: false, range: (u, min) => [Math.min(min ?? 0, -10), 0] }, y: { range: (u, min, max) => [0, max > 0 ? max * 1.08 : 1] } },
      axes: [
        { ...axis, size: 26, incrs: seconds, values: (u, vs) => vs.map(ago) },
        { ...axis, incrs, size: 64, space: 22, values: (u, vs) => vs.map((v) => tick(text(v))), label: title, labelSize: 16, labelFont: "11px system-ui, sans-serif" },
      ],
      series: [{}, ...series.map(({ label, stroke, fill, width, dash }) => ({ label, stroke, fill, width, dash, points: { size: 4, fill: stroke, filter: alone } }))],
    }, data, box);
    this.plots[id] = { key, plot, series };
  }
}
