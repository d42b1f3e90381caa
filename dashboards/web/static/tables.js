// The tables of lanes, kernels, memory and health.
import { byID, el, facts, rows } from "./dom.js";
import { bytes, count, duration, exact, share } from "./format.js";
import { colorOf, cssColor } from "./colors.js";

function named(name, of) {
  return el("span", { title: name }, el("span", { class: "swatch", color: colorOf(name, of) }), name);
}

// notes are what is to be known before anything else: [text, whether something is wrong].
export function notes(s, held, wanted) {
  const e = s.engine;
  if (s.engines.length === 0) return [[`No engine yet: ${s.waiting || "nothing is read so far"}. An engine appears here as soon as it opens lanetrace.`, false]];
  if (!e) return [[`Engine ${wanted} is not there. Choose another one.`, false]];
  const list = [];
  const live = e.state === "live";
  if (stuck(e)) list.push([`A span of step ${count(e.oldest.step)} has been in flight for ${duration(e.oldest.age)}. Unless it is meant to take that long, the GPU hangs, or waits for something that does not come.`, true]);
  if (e.state === "died") list.push([`This engine died without a clean end. What is shown is the last of it${e.busy ? `; spans in flight: ${e.busy}` : ""}.`, true]);
  if (e.memory.violations > 0) list.push([`Something wrote past the end of an allocation: guard bands violated: ${count(e.memory.violations)}. This engine's results cannot be trusted. “lanetrace report --memory” says where.`, true]);
  for (const d of e.diffs ?? []) list.push([`Region ${d.region}: ${count(d.differing)} of ${count(d.executions)} executions enqueued other operations than the one before${d.step ? `, last in step ${count(d.step)}` : ""}. The trace of that step names the first that differs.`, true]);
  if (e.level === "off" && live) list.push(["This engine's level is off: nothing is measured. “lanetrace level set lane” raises it.", false]);
  else if (held.length === 0 && !stuck(e)) list.push(["No step has ended yet.", false]);
  else if (e.level === "basic" && live) list.push(["This engine's level is basic: steps are timed on the host only. “lanetrace level set lane” adds lanes.", false]);
  else if (e.state === "ended") list.push(["This engine has ended. What is shown is the last of it.", false]);
  return list;
}

export function showLanes(e) {
  const t = byID("lanes");
  byID("lanes-of").textContent = e ? `last ${count(e.seconds)} s, ${count(e.steps)} steps, armed ones left out${e.lane_every > 1 ? `; of one step in ${count(e.lane_every)}` : ""}` : "";
  const lanes = (e?.lanes ?? []).filter((l) => l.count > 0);
  if (lanes.length === 0) return rows(t, ["No lane has ended in the last minute."]);
  rows(t, lanes.map((l) => [named(l.name, "lane"), duration(l.p50), duration(l.p99), share(l.sum, e.seconds * 1e9), (l.count / e.seconds).toFixed(1)]));
}

export function showKernels(e) {
  const t = byID("kernels");
  const ks = e?.kernels ?? [];
  if (ks.length === 0) {
    let why = "No kernel was timed in the last minute.";
    if (e && e.level !== "kernel") why += ` At level ${e.level} none is: “lanetrace level set kernel” has them timed.`;
    return rows(t, [why]);
  }
  const all = ks.reduce((n, k) => n + k.sum, 0);
  rows(t, ks.map((k) => [named(k.name, "kernel"), duration(k.sum), share(k.sum, all), duration(k.sum / k.count), count(k.count)]));
}

export function showMemory(e) {
  const m = e?.memory;
  const tracked = m && m.state !== "not_tracked";
  byID("memory-of").textContent = m?.approximate ? "sites approximate" : "";
  if (!tracked || m.state === "stale") {
    facts(byID("memory-now"), []);
    byID("suspects").replaceChildren();
    return rows(byID("sites"), [!m ? "No engine." : m.state === "stale" ? "The level is off: what is known of the memory is no longer true." : "This engine keeps no ledger of its memory."]);
  }
  facts(byID("memory-now"), [
    ["live", bytes(m.live)], ["peak", bytes(m.peak)], ["allocations", count(m.count), undefined, "live ones"],
    ["chunk slack", bytes(m.chunk), undefined, "the rest of the driver's chunks of 2 MiB that hold small allocations"],
    ["rounding slack", bytes(m.rounding), undefined, "what large allocations are rounded up by"], ["guard bands", bytes(m.guard), undefined, "behind live allocations"],
    ["bands violated", count(m.violations), m.violations > 0 ? "bad" : undefined, "guard bands that were found changed"],
  ]);
  const leaks = m.suspects ?? [];
  byID("suspects").replaceChildren(...(leaks.length === 0 ? [el("p", { class: "quiet" }, "No call site is suspected of a leak.")] : leaks.map((s) =>
    el("p", { class: "bad" }, `Suspected leak: ${s.site} grew by ${bytes(s.grown)} in ${duration(s.over)} (${bytes(s.rate)}/s), ${bytes(s.bytes)} live`))));
  const sites = (m.sites ?? []).map((s) => [el("span", { title: s.function ? `${s.function} ${s.site}` : s.site }, el("span", { class: "swatch", color: colorOf(s.site, "site") }), el("span", { class: "path" }, el("bdi", { dir: "ltr" }, s.site))), bytes(s.bytes), share(s.bytes, m.live), count(s.count)]);
  if (m.unlisted > 0) sites.push(["beyond the table", bytes(m.unlisted), share(m.unlisted, m.live), ""]);
  rows(byID("sites"), sites.length ? sites : ["Nothing is allocated."]);
}

// stuck says whether a span is in flight for longer than any step should be.
export const stuck = (e) => (e?.oldest?.age ?? 0) > 10e9;

// lines are the three lines of the account: what came in, and what became of it.
// What is lost is red as soon as there is any.
function lines(a) {
  const by = (m, bad) => Object.entries(m).sort().map(([reason, n]) => ({ name: reason, n, bad }));
  const group = (name, m, bad) => ({ name, n: Object.values(m).reduce((x, y) => x + y, 0), bad, parts: by(m, bad) });
  const p = a.producer, r = a.reader, s = a.sidecar;
  return [
    { id: "producer", title: "Spans the engine began", of: p.begun, parts: [{ name: "landed", n: p.landed }, { name: "in flight", n: p.in_flight, open: true }, group("failed", p.failed, true), { name: "dropped", n: p.dropped, bad: true }] },
    { id: "reader", title: "Entries it published", of: r.published, parts: [{ name: "received", n: r.received }, { name: "missed before attach", n: r.missed_before_attach, aside: true }, { name: "pending", n: r.pending, open: true }, group("lost", r.lost_by_reason, true)] },
    { id: "sidecar", title: "Spans received here", of: s.received, parts: [{ name: "exported", n: s.exported }, { ...group("not selected", s.not_selected, false), aside: true }, { name: "pending", n: s.pending, open: true }, { name: "rejected", n: s.rejected, bad: true }, group("dropped", s.dropped, true)] },
  ];
}

const svg = (tag, attributes) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
};

export function showHealth(e) {
  const box = byID("health");
  if (!e) {
    box.replaceChildren(el("p", { class: "quiet" }, "No engine."));
    facts(byID("facts"), []);
    byID("health-of").textContent = "";
    return;
  }
  let lost = 0;
  box.replaceChildren(...lines(e.account).map((l) => {
    const bar = svg("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": l.title });
    let x = 0;
    const words = [];
    let sum = 0;
    for (const p of l.parts) {
      sum += p.n;
      const w = l.of > 0 ? (1000 * Math.max(0, p.n)) / l.of : 0;
      const wide = p.bad && p.n > 0 ? Math.max(w, 6) : w; // a loss is seen however small
      bar.append(svg("rect", { x: Math.min(x, 1000 - wide), y: 0, width: wide, height: 16, fill: p.bad ? cssColor("bad") : p.open ? cssColor("warn") : p.aside ? cssColor("quiet") : cssColor("ok") }));
      x += w;
      if (p.bad) lost += p.n;
      const reasons = (p.parts ?? []).filter((q) => q.n > 0).map((q) => `${q.name.replaceAll("_", " ")} ${count(q.n)}`).join(", ");
      words.push(el("span", { class: p.bad && p.n > 0 ? "bad" : "quiet" }, `${p.name} ${count(p.n)}${reasons ? ` (${reasons})` : ""}`));
    }
    const even = sum === l.of;
    return el("div", { class: "balance", "data-line": l.id },
      el("div", { class: "sum" }, el("span", {}, `${l.title}: ${count(l.of)}`),
        el("span", { class: even ? "quiet" : "warn" }, even ? "adds up" : `${count(l.of - sum)} on the way`)),
      bar, el("div", { class: "parts" }, ...words));
  }));
  byID("health-of").replaceChildren(lost === 0 ? "nothing lost" : el("span", { class: "bad" }, `${count(lost)} lost`));
  const g = e.gpu_time;
  const all = g.lane + g.within + g.between + g.untimed;
  const list = [
    ["state", e.state, e.state === "died" ? "bad" : undefined],
    ["level", e.level],
    ...(e.level === "kernel" && e.kernel_every ? [["kernels timed", `1 step in ${count(e.kernel_every)}`, undefined, "the armed steps"]] : []),
    ...(e.lane_every > 1 ? [["lanes timed", `1 step in ${count(e.lane_every)}`, undefined, "those of the others are left out, to stay within their budget"]] : []),
    ...(e.overhead ? [["timing lanes takes", share(e.overhead.lanes, 1), undefined, "of the time of steps"], ["timing kernels takes", share(e.overhead.kernels, 1), undefined, "of the time of steps"]] : []),
    ["pairs in flight", e.oldest ? `${count(e.busy)}, the oldest for ${duration(e.oldest.age)}` : count(e.busy), stuck(e) ? "bad" : undefined],
    ["GPU time in lanes", share(g.lane, all)], ["in steps, outside lanes", share(g.within, all)], ["between steps", share(g.between, all)],
  ];
  for (const c of e.clocks ?? []) {
    if (c.uncertainty_ns > 0) list.push([`clock of GPU ${c.device}`, `± ${duration(c.uncertainty_ns)}`, undefined, "how surely the GPU's clock is placed on the host's"]);
    if (c.calibration !== "none") list.push(["taken off a kernel", `${exact(c.constant_ns)}, ${c.calibration}`, undefined, "what a pair of events measures beyond its kernel"]);
  }
  facts(byID("facts"), list);
}
