// Draws every panel of one board, and says of each what became of it.
import "@grafana/react-data-grid/lib/styles.css";
import "uplot/dist/uPlot.min.css";
import React from "react";
import { createRoot } from "react-dom/client";
import { createTheme, dateTime, FieldType, getFieldDisplayValues, getValueFormats, LoadingState, VizOrientation } from "@grafana/data";
import { initPluginTranslations } from "@grafana/i18n";
import { BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, GlobalStyles, PanelChrome, ThemeContext, TimeSeries } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";
import { configured, framesOf, transformed } from "./frames.js";
import { Heat } from "./heat.jsx";

const page = new URLSearchParams(location.search);
const end = Number(page.get("end")), seconds = Number(page.get("seconds")), step = Number(page.get("step")), rateInterval = page.get("rate");
const width = 1600, cell = width / 24, row = 38, gap = 8;
const theme = createTheme({ colors: { mode: page.get("theme") ?? "light" } });
const timeRange = { from: dateTime((end - seconds) * 1000), to: dateTime(end * 1000), raw: { from: "now-2m", to: "now" } };
const units = new Set(getValueFormats().flatMap((c) => c.submenu.map((u) => u.value)));

// interpolated puts in what variables stand for when all is chosen.
const interpolated = (expr) => expr.replaceAll("$__rate_interval", rateInterval).replace(/\$\{?(\w+)\}?/g, ".*");

async function asked(target) {
  const at = target.instant ? { time: end } : { start: end - seconds, end, step };
  const url = `/api/v1/query${target.instant ? "" : "_range"}?` + new URLSearchParams({ query: interpolated(target.expr), ...at });
  const a = await (await fetch(url)).json();
  if (a.status !== "success") throw new Error(a.error);
  return a.data.result;
}

// NoData is what Grafana shows in place of nothing.
function NoData({ said }) {
  return <div className="no-data" style={{ height: "100%", display: "flex", alignItems: "center", justifyContent: "center", color: theme.colors.text.secondary }}>{said ?? "No data"}</div>;
}

function Values({ panel, frames, w, h }) {
  const shown = getFieldDisplayValues({ data: frames, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (s) => s, theme, timeZone: "utc", sparkline: panel.options.graphMode === "area" });
  const each = panel.type === "stat" ? w / shown.length : h / shown.length;
  const bars = panel.type === "bargauge";
  return (
    <div style={{ display: "flex", flexDirection: bars ? "column" : "row", gap: bars ? 2 : 0 }}>
      {shown.map((v, i) => bars
        ? <BarGauge key={i} theme={theme} width={w} height={Math.max(14, Math.min(34, each - 2))} value={v.display} field={v.field} display={frames[0].fields.find((f) => f.type === FieldType.number).display} orientation={VizOrientation.Horizontal} displayMode={panel.options.displayMode} showUnfilled={panel.options.showUnfilled} alignmentFactors={{ title: shown.map((s) => s.display.title).reduce((a, b) => (b.length > a.length ? b : a), ""), text: "000.00 ms" }} />
        : <BigValue key={i} theme={theme} width={each} height={h} value={v.display} sparkline={v.sparkline} colorMode={panel.options.colorMode ?? BigValueColorMode.Value} graphMode={panel.options.graphMode ?? BigValueGraphMode.Area} textMode={panel.options.textMode ?? BigValueTextMode.Auto} count={shown.length} />)}
    </div>
  );
}

function Body({ panel, frames, w, h }) {
  const rows = frames.some((f) => f.length > 0 && (panel.type === "table" || f.fields.some((x) => x.type === FieldType.number && x.values.some((v) => v !== null))));
  if (!rows) return <NoData said={panel.fieldConfig.defaults.noValue} />;
  switch (panel.type) {
    case "timeseries":
      return <TimeSeries frames={frames} width={w} height={h} timeRange={timeRange} timeZone="utc" legend={panel.options.legend} options={panel.options} />;
    case "stat":
    case "bargauge":
      return <Values panel={panel} frames={frames} w={w} h={h} />;
    case "table":
      return <div style={{ width: w, height: h, display: "grid" }}><TableNG data={frames[0]} width={w} height={h} fieldConfig={panel.fieldConfig} /></div>;
    case "heatmap":
      return <Heat panel={panel} frames={frames} w={w} h={h} theme={theme} timeRange={timeRange} />;
  }
  throw new Error(`no component draws a panel of type ${panel.type}`);
}

// Caught says what a component threw.
class Caught extends React.Component {
  state = { error: null };
  static getDerivedStateFromError(error) {
    return { error };
  }
  render() {
    if (!this.state.error) return this.props.children;
    return <div className="panel-error">{String(this.state.error.stack ?? this.state.error)}</div>;
  }
}

function Panel({ panel, answer }) {
  const { x, y, w, h } = panel.gridPos;
  const box = { position: "absolute", left: x * cell, top: y * row, width: w * cell - gap, height: h * row - gap };
  if (panel.type === "row") return <h2 style={{ ...box, margin: 0, fontSize: 18, lineHeight: "30px" }}>{panel.title}</h2>;
  return (
    <div className="panel" data-id={panel.id} style={box}>
      <PanelChrome title={panel.title} description={panel.description} width={box.width} height={box.height} loadingState={answer.error ? LoadingState.Error : LoadingState.Done} statusMessage={answer.error}>
        {(w, h) => <Caught>{answer.error ? <div className="panel-error">{answer.error}</div> : <Body panel={panel} frames={answer.frames} w={w} h={h} />}</Caught>}
      </PanelChrome>
    </div>
  );
}

async function main() {
  await initPluginTranslations("lanetrace-panels", []).catch(() => {}); // texts stay English
  const board = await (await fetch(`/boards/${page.get("board")}.json`)).json();
  const answers = new Map();
  await Promise.all(board.panels.filter((p) => p.type !== "row").map(async (p) => {
    try {
      const frames = (await Promise.all(p.targets.map(async (t) => framesOf(t, await asked(t))))).flat();
      answers.set(p.id, { series: frames.reduce((n, f) => n + (p.type === "table" ? f.length : 1), 0), frames: transformed(p, configured(p, frames, theme)) });
    } catch (e) {
      answers.set(p.id, { series: 0, frames: [], error: String(e.message) });
    }
  }));
  const bottom = Math.max(...board.panels.map((p) => p.gridPos.y + p.gridPos.h)) * row;
  createRoot(document.getElementById("root")).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles isExtensionSidebarOpen={false} />
      <div id="board" style={{ position: "relative", width, height: bottom, background: theme.colors.background.canvas }}>
        {board.panels.map((p) => <Panel key={p.id} panel={p} answer={answers.get(p.id)} />)}
      </div>
    </ThemeContext.Provider>,
  );
  const look = () => board.panels.filter((p) => p.type !== "row").map((p) => {
    const at = document.querySelector(`.panel[data-id="${p.id}"]`);
    const canvases = [...at.querySelectorAll("canvas")].filter((c) => c.width > 0 && c.height > 0);
    return {
      title: p.title, type: p.type, series: answers.get(p.id).series,
      error: at.querySelector(".panel-error")?.textContent ?? "",
      noData: at.querySelector(".no-data") !== null,
      text: at.innerText,
      colors: canvases.reduce((n, c) => n + colorsIn(c), 0),
      unit: p.fieldConfig.defaults.unit ?? "", unitKnown: (units.has(p.fieldConfig.defaults.unit) || /^count:.*\/s$/.test(p.fieldConfig.defaults.unit)) && (!p.options.yAxis?.unit || units.has(p.options.yAxis.unit)),
    };
  });

  // Charts size themselves first, and a busy machine is late with it: what stays is told.
  const frame = () => new Promise((r) => requestAnimationFrame(r));
  for (let before = null; ; ) {
    for (let i = 0; i < 30; i++) await frame();
    const drawn = look();
    if (JSON.stringify(drawn) === before) {
      globalThis.drawn = drawn;
      return;
    }
    before = JSON.stringify(drawn);
  }
}

// colorsIn is how many colours a canvas has, up to 50: one that nothing is drawn on has
// at most one.
function colorsIn(canvas) {
  const d = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < d.length && seen.size < 50; i += 4) seen.add((d[i] << 24) | (d[i + 1] << 16) | (d[i + 2] << 8) | d[i + 3]);
  return seen.size;
}

main().catch((e) => {
  globalThis.failed = String(e.stack ?? e);
});
