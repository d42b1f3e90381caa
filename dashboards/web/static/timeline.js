// The timeline: a canvas drawn by hand. Only what is in view is looked at, and
// what is narrower than a pixel is drawn once a pixel.
import { clock, count, duration, exact, tick } from "./format.js";
import { colorOf, cssColor, inkOn } from "./colors.js";
import { tip } from "./dom.js";
import { calibrations, gaps, kinds, layout } from "./model.js";

const left = 104; // of the rows' names
const top = 20; // of the axis
const between = 3;
const minSpan = 20, maxSpan = 3.6e12; // ns from edge to edge

export class Timeline {
  constructor(canvas, { onView, onSelect }) {
    this.canvas = canvas;
    this.onView = onView;
    this.onSelect = onSelect;
    this.steps = [];
    this.rows = [];
    this.a = 0;
    this.z = 1e6;
    this.selected = null;
    this.hovered = null;
    this.baseUnix = "0";
    this.queued = false;
    this.drawnIn = 0;
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      const x = this.x(e);
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.move(((e.deltaX || e.deltaY) / this.width) * (this.z - this.a));
      else this.zoom(Math.exp(Math.sign(e.deltaY) * Math.min(Math.abs(e.deltaY), 200) * 0.003), this.timeAt(x));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      this.drag = { x: e.clientX, a: this.a, z: this.z, moved: false };
    });
    canvas.addEventListener("pointermove", (e) => {
      if (this.drag) {
        const d = e.clientX - this.drag.x;
        if (Math.abs(d) > 3) this.drag.moved = true;
        if (this.drag.moved) {
          const by = (-d / this.width) * (this.drag.z - this.drag.a);
          this.show(this.drag.a + by, this.drag.z + by);
        }
      }
      this.hover(e);
    });
    canvas.addEventListener("pointerup", (e) => {
      if (this.drag && !this.drag.moved) {
        const it = this.itemAt(this.x(e), this.y(e));
        this.select(it);
      }
      this.drag = null;
    });
    canvas.addEventListener("pointercancel", () => (this.drag = null));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("dblclick", (e) => {
      const it = this.itemAt(this.x(e), this.y(e));
      if (it) this.showItem(it);
    });
    new ResizeObserver(() => this.redraw()).observe(canvas);
  }

  get width() {
    return Math.max(10, this.canvas.clientWidth - left - 8);
  }

  x(e) {
    return e.clientX - this.canvas.getBoundingClientRect().left;
  }

  y(e) {
    return e.clientY - this.canvas.getBoundingClientRect().top;
  }

  timeAt(x) {
    return this.a + ((x - left) / this.width) * (this.z - this.a);
  }

  // set replaces what is drawn.
  set(steps) {
    this.steps = steps;
    this.rows = layout(steps);
    let y = top;
    for (const r of this.rows) {
      r.y = y;
      y += r.height + between;
    }
    const h = Math.max(120, y + 6);
    if (this.h !== h) {
      this.h = h;
      this.canvas.style.height = h + "px";
    }
    this.redraw();
  }

  // show has the view from a to z.
  show(a, z, quiet = false) {
    const mid = (a + z) / 2, span = Math.min(Math.max(z - a, minSpan), maxSpan);
    this.a = mid - span / 2;
    this.z = mid + span / 2;
    if (!quiet) this.onView();
    this.redraw();
  }

  showItem(it) {
    const pad = Math.max(10, (it.t1 - it.t0) * 0.05);
    this.show(it.t0 - pad, it.t1 + pad);
  }

  showSteps(steps, quiet = false) {
    if (steps.length === 0) return;
    let a = Infinity, z = -Infinity;
    for (const s of steps) {
      a = Math.min(a, s.a);
      z = Math.max(z, s.z);
    }
    const pad = (z - a) * 0.02 + 1;
    this.show(a - pad, z + pad, quiet);
  }

  zoom(by, around = (this.a + this.z) / 2) {
    by = Math.min(Math.max(by, minSpan / (this.z - this.a)), maxSpan / (this.z - this.a));
    this.show(around - (around - this.a) * by, around + (this.z - around) * by);
  }

  move(ns) {
    this.show(this.a + ns, this.z + ns);
  }

  inView() {
    return this.steps.filter((s) => s.z >= this.a && s.a <= this.z);
  }

  select(it) {
    this.selected = it;
    this.onSelect(it);
    this.redraw();
  }

  itemAt(x, y) {
    const row = this.rows.find((r) => y >= r.y && y <= r.y + r.height);
    if (!row || x < left - 3) return null;
    const near = ((this.z - this.a) / this.width) * 2;
    const t = this.timeAt(x);
    let best = null, far = near;
    for (let i = Math.max(0, row.firstFrom(t - near)); i < row.items.length; i++) {
      const it = row.items[i];
      if (it.t0 > t + near) break;
      const d = t < it.t0 ? it.t0 - t : t > it.t1 ? t - it.t1 : 0;
      if (d === 0) return it;
      if (d <= far) {
        best = it;
        far = d;
      }
    }
    return best;
  }

  hover(e) {
    const it = e && !this.drag?.moved ? this.itemAt(this.x(e), this.y(e)) : null;
    if (it !== this.hovered) {
      this.hovered = it;
      this.redraw();
    }
    tip(it && describe(it, this.baseUnix), e?.clientX, e?.clientY);
  }

  redraw() {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => {
      this.queued = false;
      this.draw();
    });
  }

  draw() {
    const began = performance.now();
    const c = this.canvas, dpr = devicePixelRatio || 1, w = c.clientWidth, h = this.h ?? 120;
    if (c.width !== Math.round(w * dpr) || c.height !== Math.round(h * dpr)) {
      c.width = Math.round(w * dpr);
      c.height = Math.round(h * dpr);
    }
    const g = c.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    const k = { ink: cssColor("ink"), quiet: cssColor("quiet"), line: cssColor("line"), bad: cssColor("bad"), warn: cssColor("warn"), accent: cssColor("accent"), card: cssColor("card") };
    this.axis(g, k, w, h);
    g.save();
    g.beginPath();
    g.rect(left, 0, this.width, h);
    g.clip();
    let spans = 0;
    for (const row of this.rows) {
      const n = this.row(g, row, k);
      spans += n;
      if (n > 0 || row.kind !== "kernel" || !row.label) continue;
      g.fillStyle = k.quiet;
      g.textAlign = "left";
      g.fillText("none in view: the kernels of armed steps are timed", left + 4, row.y + row.height / 2 + 0.5);
    }
    this.marks(g, k);
    g.restore();
    g.textAlign = "right";
    for (const row of this.rows) {
      if (!row.label) continue;
      g.fillStyle = k.quiet;
      g.fillText(row.label, left - 8, row.y + row.height / 2, left - 12);
    }
    this.drawnIn = performance.now() - began;
    // For whoever wants to know what is drawn without reading pixels.
    Object.assign(c.dataset, { a: this.a, z: this.z, spans, steps: this.steps.length, ms: this.drawnIn.toFixed(2) });
  }

  axis(g, k, w, h) {
    if (this.steps.length === 0) return;
    const raw = (this.z - this.a) / Math.max(2, this.width / 110);
    const p = 10 ** Math.floor(Math.log10(raw));
    const size = [1, 2, 5, 10].map((m) => m * p).find((v) => v >= raw) ?? 10 * p;
    // Counted from the first step in view: that is what one wants to know.
    const zero = this.steps.find((s) => s.a >= this.a && s.a <= this.z)?.a ?? this.inView()[0]?.a ?? this.a;
    g.fillStyle = k.quiet;
    g.textAlign = "right";
    g.fillText(clock(this.baseUnix, zero), left - 8, 8);
    g.textAlign = "left";
    for (let i = Math.ceil((this.a - zero) / size); zero + i * size <= this.z; i++) {
      const x = Math.round(left + ((zero + i * size - this.a) / (this.z - this.a)) * this.width) + 0.5;
      g.strokeStyle = k.line;
      g.beginPath();
      g.moveTo(x, top - 4);
      g.lineTo(x, h);
      g.stroke();
      g.fillStyle = k.quiet;
      if (x + 60 < w && x >= left) g.fillText((i > 0 ? "+" : "") + tick(duration(i * size)).replace("-", "−"), x + 3, 8);
    }
  }

  row(g, row, k) {
    const scale = this.width / (this.z - this.a);
    const px = (t) => left + (t - this.a) * scale;
    let drawn = 0, filled = -Infinity, before = null;
    for (let i = row.firstFrom(this.a); i < row.items.length; i++) {
      const it = row.items[i];
      if (it.t0 > this.z) break;
      const x0 = px(it.t0), x1 = px(it.t1);
      if (row.gaps && before && x0 - px(before.t1) > 3) this.gap(g, row, px(before.t1), x0, it.t0 - before.t1, k);
      before = it;
      drawn++;
      if (x1 < filled) continue;
      const width = Math.max(1, x1 - x0);
      filled = Math.max(filled, Math.floor(Math.max(x0, filled)) + 1);
      const lx = Math.max(x0, left - 2), lw = Math.min(x1, left + this.width + 2) - lx;
      if (row.kind === "host" || row.kind === "extent") {
        const s = it.step;
        g.fillStyle = s.slow ? k.bad : s.faulty ? k.warn : s.armed ? k.accent : k.quiet;
        g.globalAlpha = row.kind === "host" ? 1 : 0.4;
        g.fillRect(x0, row.y, width, row.height);
        g.globalAlpha = 1;
        const is = s.slow ? ", slow" : s.faulty ? ", faulty" : s.armed ? ", armed" : "";
        this.text(g, [`step ${count(s.n)}${is}`, `step ${count(s.n)}`, count(s.n)], lx, lw, row, row.kind === "host" ? k.card : k.ink);
        continue;
      }
      const color = colorOf(it.name.title, it.kind === 0 ? "lane" : "kernel");
      g.fillStyle = color;
      g.fillRect(x0, row.y, width, row.height);
      if (it.correction > 0 && width > 3) { // what the pair measured beyond the kernel
        g.globalAlpha = 0.3;
        g.fillRect(x1, row.y, Math.max(0, it.correction * scale), row.height);
        g.globalAlpha = 1;
      }
      if (it.gap === 2 && width > 1.5) {
        g.fillStyle = inkOn(color);
        g.fillRect(x0, row.y + row.height - 3, width, 3);
      }
      if (lw > 24) this.text(g, [it.name.title], lx, lw, row, inkOn(color));
    }
    return drawn;
  }

  // text writes the first of several that has room, or as much of the only one as has.
  text(g, texts, x, w, row, color) {
    const room = Math.floor((w - 6) / 6); // a letter takes about six pixels
    let s = texts.find((t) => t.length <= room || (t.length < room * 2 && g.measureText(t).width <= w - 6));
    if (!s && texts.length === 1 && room > 3) s = texts[0].slice(0, room - 1) + "…";
    if (!s) return;
    g.fillStyle = color;
    g.textAlign = "left";
    g.fillText(s, x + 3, row.y + row.height / 2 + 0.5, w - 4);
  }

  gap(g, row, x0, x1, ns, k) {
    const y = row.y + row.height / 2;
    g.strokeStyle = k.quiet;
    g.setLineDash([2, 3]);
    g.beginPath();
    g.moveTo(Math.max(x0, left), y);
    g.lineTo(Math.min(x1, left + this.width), y);
    g.stroke();
    g.setLineDash([]);
    const a = Math.max(x0, left), z = Math.min(x1, left + this.width);
    if (z - a > 62) {
      const s = duration(ns), w = g.measureText(s).width + 8;
      g.fillStyle = k.card;
      g.fillRect((a + z - w) / 2, y - 7, w, 14);
      g.fillStyle = k.quiet;
      g.textAlign = "center";
      g.fillText(s, (a + z) / 2, y + 0.5);
    }
  }

  // marks are the frames of what is selected and hovered, its wait from the host's
  // enqueue to its start, and spans that failed.
  marks(g, k) {
    const scale = this.width / (this.z - this.a);
    const px = (t) => left + (t - this.a) * scale;
    for (const it of [this.hovered, this.selected]) {
      if (!it) continue;
      const row = this.rows.find((r) => r.items.includes(it));
      if (!row) continue;
      g.strokeStyle = it === this.selected ? k.ink : k.quiet;
      g.lineWidth = 2;
      g.strokeRect(px(it.t0) - 1, row.y - 1, Math.max(3, (it.t1 - it.t0) * scale + 2), row.height + 2);
      g.lineWidth = 1;
      if (it.lead !== undefined) {
        g.beginPath();
        g.moveTo(px(it.t0 - it.lead), row.y + row.height);
        g.lineTo(px(it.t0 - it.lead), row.y + row.height - 8);
        g.moveTo(px(it.t0 - it.lead), row.y + row.height - 1);
        g.lineTo(px(it.t0), row.y + row.height - 1);
        g.stroke();
      }
    }
    const host = this.rows[0];
    if (!host) return;
    g.fillStyle = k.bad;
    for (const s of this.inView()) for (const f of s.failures) g.fillRect(px(f.t) - 1, host.y - 4, 3, host.height + 8);
  }
}

// describe is what is known of an item, a line each.
export function describe(it, baseUnix) {
  const s = it.step;
  const when = (t) => clock(baseUnix, t);
  if (it.host) return [`step ${count(s.n)} on the host`, `${exact(s.host)}, from ${when(it.t0)}`, ...stepLines(s)];
  if (it.extent) return [`step ${count(s.n)} on the GPU`, `${exact(it.t1 - it.t0)}, from ${when(it.t0)}`, ...stepLines(s)];
  const lines = [it.name.title];
  if (it.name.full !== it.name.title) lines.push(it.name.full.length > 300 ? it.name.full.slice(0, 300) + "…" : it.name.full);
  lines.push(`${kinds[it.kind]} of step ${count(s.n)}${it.lane && it.kind !== 0 ? ", lane " + it.lane.title : ""}`);
  if (it.correction > 0) lines.push(`corrected ${exact(it.raw - it.correction)} ± ${duration(it.length)}`, `raw ${exact(it.raw)}, constant ${exact(it.correction)} (${calibrations[it.calibration]})`);
  else lines.push(`${exact(it.raw)} ± ${duration(it.length)}, raw`);
  lines.push(`starts ${when(it.t0)} ± ${duration(it.place)}, ${duration(it.t0 - s.a)} into its step`);
  lines.push(`queue delay ${exact(it.lead)}`);
  if (it.kind !== 0 || it.gap) lines.push(["gap to the launch before: not known", "queued: no host gap inside", "starved: the stream had run dry, so this holds launch latency"][it.gap]);
  if (it.inGraph) lines.push("inside a graph");
  return lines;
}

function stepLines(s) {
  const lines = [];
  if (s.mode !== undefined) lines.push(`batch ${s.batch}, ${s.decode} decode and ${s.prefill} prefill tokens, graph mode ${s.mode}`);
  lines.push(`${duration(s.lanes)} in lanes, ${duration(s.outside)} outside them, limited by ${s.bound}`);
  if (s.busy !== undefined) lines.push(`${duration(s.busy)} in kernels, ${duration(s.idle)} of lanes idle, ${s.starved} of ${s.kernels} launches starved`);
  if (s.queue !== undefined) lines.push(`queue delay ${duration(s.queue)}`);
  const flags = [s.slow && "slow", s.armed && (s.asked ? "armed on request" : "armed"), s.untimed && "lanes not timed, to stay within their budget", s.incomplete && "incomplete: " + s.incomplete, s.dropped && s.dropped + " spans dropped", s.missing && s.missing + " spans missing", s.failed && s.failed + " spans failed", s.cut && s.cut + " spans not shown"].filter(Boolean);
  if (flags.length) lines.push(flags.join(", "));
  for (const f of s.failures) lines.push(`failed (${f.reason}): ${f.name.title}`);
  return lines;
}

// Overview is a bar for each step, the higher the longer it took; a click shows the
// step. Heights go with the square root, so that one long step does not flatten all.
export class Overview {
  constructor(canvas, onStep) {
    this.canvas = canvas;
    this.steps = [];
    canvas.addEventListener("click", (e) => {
      const r = canvas.getBoundingClientRect();
      const i = Math.floor(((e.clientX - r.left) / r.width) * this.bars);
      const s = this.shown?.[Math.min(i, this.shown.length - 1)];
      if (s) onStep(s);
    });
  }

  draw(steps, a, z) {
    const c = this.canvas, dpr = devicePixelRatio || 1, w = c.clientWidth, h = 36;
    c.width = Math.round(w * dpr);
    c.height = Math.round(h * dpr);
    c.style.height = h + "px";
    const g = c.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    this.bars = Math.max(64, Math.min(steps.length, Math.floor(w / 2)));
    this.shown = steps.slice(-this.bars);
    let longest = 1;
    for (const s of this.shown) longest = Math.max(longest, s.z - s.a);
    const bw = w / this.bars;
    // What is slow stands out by its height; what is faulty, by a mark above, as well.
    const k = { slow: cssColor("bad"), faulty: cssColor("warn"), armed: cssColor("accent"), quiet: cssColor("quiet"), line: cssColor("line") };
    this.shown.forEach((s, i) => {
      const inView = s.z >= a && s.a <= z;
      if (inView) {
        g.fillStyle = k.line;
        g.fillRect(i * bw, 0, bw, h);
      }
      g.fillStyle = s.slow ? k.slow : s.faulty ? k.faulty : s.armed ? k.armed : k.quiet;
      g.globalAlpha = inView ? 1 : 0.6;
      const bh = Math.max(2, Math.sqrt((s.z - s.a) / longest) * (h - 6)), width = Math.max(1, bw - (bw > 3 ? 1 : 0));
      g.fillRect(i * bw, h - bh, width, bh);
      if (s.faulty) g.fillRect(i * bw, 0, Math.max(2, width), 4);
      g.globalAlpha = 1;
    });
  }
}
