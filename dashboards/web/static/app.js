// The page: one stream of events in, everything else drawn of it.
import { Charts } from "./charts.js";
import { byID, el } from "./dom.js";
import { theme } from "./colors.js";
import { Held, decode } from "./model.js";
import { Overview, Timeline, describe } from "./timeline.js";
import { count } from "./format.js";
import { notes, showHealth, showKernels, showLanes, showMemory } from "./tables.js";

const followed = 8; // steps in view while the newest are followed

const none = { label: "", run: "", base_unix_ns: "0" };

let run = none; // what the header, the tables and the charts are of
let heldRun = none; // and the timeline: an earlier one where the view stands still
let stale = false; // what is held came before: of another run, or with times counted from elsewhere
let state = null;
let held = new Held();
let source = null;
let engine = new URLSearchParams(location.search).get("engine") ?? "";
let follow = true;
let only = null; // "slow", "armed" or null
let skipped = 0;
let frozen = 0; // steps that came while the view did not follow
let again = 0; // timer of a connection that has to be made by hand

const legend = byID("legend");
const charts = new Charts();
const overview = new Overview(byID("overview"), (s) => {
  setFollow(false);
  timeline.showSteps([s]);
});
const timeline = new Timeline(byID("timeline"), {
  onView: () => {
    setFollow(false);
    drawn();
  },
  onSelect: details,
});

// --- the stream

function connect() {
  clearTimeout(again);
  source?.close();
  link("connecting", "");
  source = new EventSource("/live/events" + (engine ? "?engine=" + encodeURIComponent(engine) : ""));
  source.addEventListener("run", (e) => begin(JSON.parse(e.data)));
  source.addEventListener("steps", (e) => more(JSON.parse(e.data)));
  source.addEventListener("state", (e) => now(JSON.parse(e.data)));
  source.onopen = () => link("connected", "live");
  const mine = source;
  source.onerror = () => {
    const refused = mine.readyState === EventSource.CLOSED; // and the browser gives up
    link(refused ? "refused, trying again" : "no answer, trying again", "away");
    if (refused) again = setTimeout(connect, 2000);
  };
}

function link(text, cls) {
  byID("link").textContent = text;
  byID("link").className = cls;
}

// begin starts with a run, of which all that the server holds comes next. A view that
// stands still goes on doing so.
function begin(r) {
  run = r;
  charts.reset();
  byID("about").textContent = r.run && [r.gpu, r.model, r.producer, `pid ${r.pid}`, `run ${r.run.slice(0, 8)}`].filter(Boolean).join(" · ");
  byID("about").title = r.run && `run ${r.run}`;
  frozen = 0;
  stale = !follow && held.steps.length > 0;
  if (!stale) {
    heldRun = r;
    held = new Held();
    skipped = 0;
    timeline.baseUnix = r.base_unix_ns;
    timeline.select(null);
    setFollow(true);
  }
  refill();
}

function more(event) {
  const steps = decode(event);
  if (!follow) {
    const last = held.steps.at(-1)?.n ?? -1; // a stream that began anew sends those before it again
    frozen += steps.filter((s) => s.n > last).length + event.skipped;
    drawn();
    return;
  }
  skipped += event.skipped;
  held.add(steps);
  refill();
}

function now(s) {
  state = s;
  byID("version").textContent = "lanetrace " + s.version;
  pick(s.engines);
  say(notes(s, held.steps, engine));
  for (const id of ["get-chrome", "get-recording"]) byID(id).hidden = !s.downloads;
  if (!s.engine && run !== none) begin(none);
  const e = s.engine ?? null;
  charts.add(e);
  showLanes(e);
  showKernels(e);
  showMemory(e);
  showHealth(e);
}

function pick(engines) {
  const select = byID("engines");
  const want = engines.map((e) => [e.label, e.state === "live" ? e.label : `${e.label} (${e.state})`]);
  if (engine && !engines.some((e) => e.label === engine)) want.unshift([engine, `${engine} (not there)`]);
  const changed = JSON.stringify(want) !== select.dataset.list;
  if (changed) {
    select.dataset.list = JSON.stringify(want);
    select.replaceChildren(...want.map(([value, text]) => el("option", { value }, text.length > 80 ? text.slice(0, 79) + "…" : text)));
  }
  select.disabled = want.length === 0;
  // A choice that is being made is left alone.
  if (changed || document.activeElement !== select) select.value = engine || run.label;
}

// say puts what is to be known first at the page's top.
function say(list) {
  const box = byID("notes"), text = JSON.stringify(list);
  if (box.dataset.list === text) return;
  box.dataset.list = text;
  box.replaceChildren(...list.map(([line, wrong]) => el("p", { class: wrong ? "note wrong" : "note" }, line)));
}

// --- the timeline

function chosen() {
  return only ? held.steps.filter((s) => s[only]) : held.steps;
}

function refill() {
  if (document.hidden) return; // nobody looks
  const steps = chosen();
  timeline.set(steps);
  if (follow) timeline.showSteps(steps.slice(only ? -1 : -followed), true);
  drawn();
}

function drawn() {
  const steps = chosen();
  overview.draw(steps, timeline.a, timeline.z);
  const n = steps.filter((s) => s.z >= timeline.a && s.a <= timeline.z).length;
  const parts = [`${count(n)} of ${count(held.steps.length)} steps`];
  if (only) parts.push(steps.length === 0 ? `no ${only} step is held` : `${count(steps.length)} ${only}`);
  if (heldRun.run !== run.run) parts.push(`of run ${heldRun.run.slice(0, 8)}, an earlier one: F follows`);
  else if (frozen > 0) parts.push(`${count(frozen)} newer: F follows`);
  else if (skipped > 0) parts.push(`${count(skipped)} skipped: more than a page can take`);
  byID("shown").textContent = parts.join(" · ");
  legend.hidden = held.steps.length === 0;
  for (const id of ["get-chrome", "get-recording"]) byID(id).disabled = n === 0;
}

function setFollow(on) {
  if (on && !follow) frozen = 0;
  follow = on;
  byID("follow").setAttribute("aria-pressed", String(on));
}

function setOnly(what) {
  only = only === what ? null : what;
  byID("slow").setAttribute("aria-pressed", String(only === "slow"));
  byID("armed").setAttribute("aria-pressed", String(only === "armed"));
  const steps = chosen();
  timeline.set(steps);
  if (only) timeline.showSteps(steps.slice(-1), true);
  else if (follow) timeline.showSteps(steps.slice(-followed), true);
  drawn();
}

function details(it) {
  const box = byID("details");
  if (!it) return box.replaceChildren(legend);
  setFollow(false);
  const [first, ...rest] = describe(it, timeline.baseUnix);
  box.replaceChildren(el("b", {}, first), " · " + rest.join(" · "));
  drawn();
}

function stepBy(d) {
  const steps = chosen();
  if (steps.length === 0) return;
  const mid = (timeline.a + timeline.z) / 2;
  const at = timeline.selected?.step ?? steps.reduce((b, s) => (Math.abs((s.a + s.z) / 2 - mid) < Math.abs((b.a + b.z) / 2 - mid) ? s : b));
  const i = steps.indexOf(at);
  const s = steps[Math.max(0, Math.min(steps.length - 1, i < 0 ? steps.length - 1 : i + d))];
  timeline.showSteps([s]);
  const row = timeline.rows.find((r) => r.kind === "host") ?? timeline.rows[0];
  timeline.select(row?.items.find((it) => it.step === s) ?? s.spans[0] ?? null);
}

function spanBy(d) {
  const it = timeline.selected;
  const s = it?.step ?? timeline.inView()[0];
  if (!s || s.spans.length === 0) return;
  const spans = [...s.spans].sort((x, y) => x.t0 - y.t0);
  const i = it && !it.host && !it.extent ? spans.indexOf(it) + d : d > 0 ? 0 : spans.length - 1;
  const to = spans[Math.max(0, Math.min(spans.length - 1, i))];
  if (to.t0 < timeline.a || to.t1 > timeline.z) timeline.move((to.t0 + to.t1) / 2 - (timeline.a + timeline.z) / 2);
  timeline.select(to);
}

// download fetches the steps in view; what goes wrong is said.
async function download(format) {
  const steps = chosen().filter((s) => s.z >= timeline.a && s.a <= timeline.z).map((s) => s.n).sort((x, y) => x - y);
  let ranges = [];
  for (const n of steps) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] + 1 >= n) last[1] = n;
    else ranges.push([n, n]);
  }
  ranges = ranges.slice(-64); // as many as a server takes
  const text = ranges.map(([a, z]) => (a === z ? `${a}` : `${a}-${z}`)).join(",");
  const url = `/live/download?run=${encodeURIComponent(heldRun.run)}&format=${format}&steps=${text}`;
  const box = byID("details");
  try {
    const r = await fetch(url);
    if (!r.ok) throw new Error((await r.text()).trim());
    const a = el("a", { href: URL.createObjectURL(await r.blob()), download: `lanetrace-${heldRun.run.slice(0, 8)}-${ranges[0][0]}.${format === "chrome" ? "json" : "ltrec"}` });
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 10000);
    box.textContent = `Steps written: ${ranges.reduce((n, [a, z]) => n + z - a + 1, 0)}.`;
  } catch (e) {
    box.replaceChildren(el("span", { class: "bad" }, "No download: " + e.message));
  }
}

// --- controls

const actions = {
  follow: () => {
    setFollow(true);
    if (stale) {
      begin(none);
      connect();
    }
    refill();
  },
  slow: () => setOnly("slow"),
  armed: () => setOnly("armed"),
  fit: () => {
    setFollow(false);
    timeline.showSteps(chosen());
  },
  "zoom-in": () => timeline.zoom(0.5),
  "zoom-out": () => timeline.zoom(2),
  "get-chrome": () => download("chrome"),
  "get-recording": () => download("recording"),
  theme: () => setTheme(theme() === "dark" ? "light" : "dark", true),
  keys: () => byID("help").showModal(),
  "help-close": () => byID("help").close(),
};
for (const [id, act] of Object.entries(actions)) byID(id).addEventListener("click", act);

const keys = {
  ArrowLeft: () => timeline.move((timeline.a - timeline.z) / 5),
  ArrowRight: () => timeline.move((timeline.z - timeline.a) / 5),
  "+": actions["zoom-in"], "=": actions["zoom-in"], "-": actions["zoom-out"],
  "[": () => stepBy(-1), "]": () => stepBy(1), ",": () => spanBy(-1), ".": () => spanBy(1),
  0: actions.fit, f: actions.follow, s: actions.slow, a: actions.armed, t: actions.theme, "?": actions.keys,
  e: () => byID("engines").focus(),
  Escape: () => timeline.select(null),
};
addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || byID("help").open || e.target.matches?.("select, input")) return;
  const act = keys[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (!act) return;
  e.preventDefault();
  act();
});

byID("engines").addEventListener("change", (e) => {
  engine = e.target.value;
  history.replaceState(null, "", "?engine=" + encodeURIComponent(engine));
  e.target.blur();
  setFollow(true);
  connect();
});

// --- theme

const preferred = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null; // a browser that keeps nothing
  }
}

function setTheme(t, keep) {
  document.documentElement.dataset.theme = t;
  if (keep) {
    try {
      localStorage.setItem("theme", t);
    } catch {
      // it lasts as long as the page
    }
  }
  timeline.redraw();
  drawn();
  charts.restyle();
  if (state) now({ ...state, engine: state.engine && { ...state.engine, history: [], memory: { ...state.engine.memory, past: [] } } });
}

preferred.addEventListener("change", () => {
  if (!stored()) setTheme(preferred.matches ? "dark" : "light", false);
});
addEventListener("resize", drawn);
document.addEventListener("visibilitychange", refill);
// For the browser's console, and for tests.
globalThis.lanetrace = { timeline, held: () => held.steps, state: () => state };
setTheme(stored() ?? (preferred.matches ? "dark" : "light"), false);
connect();
