// What Prometheus answers, as the data frames that Grafana's components draw.
import { FieldType, getDisplayProcessor, toDataFrame } from "@grafana/data";

// named is a series' name by a query's legend.
export function named(legend, labels) {
  if (!legend) return Object.entries(labels).filter(([k]) => k !== "__name__").map(([k, v]) => `${k}="${v}"`).join(", ");
  return legend.replace(/\{\{\s*([^}\s]+)\s*\}\}/g, (_, l) => labels[l] ?? "");
}

const number = (s) => {
  const v = Number(s);
  return Number.isNaN(v) ? null : v; // a mean of none is a gap
};

// framesOf makes frames of one query's answer: a table, or one frame a series.
export function framesOf(target, result) {
  if (target.format === "table") {
    const labels = [...new Set(result.flatMap((s) => Object.keys(s.metric)))].sort();
    return [toDataFrame({
      refId: target.refId,
      fields: [
        { name: "Time", type: FieldType.time, values: result.map((s) => s.value[0] * 1000) },
        ...labels.map((l) => ({ name: l, type: FieldType.string, values: result.map((s) => s.metric[l] ?? "") })),
        { name: "Value", type: FieldType.number, values: result.map((s) => number(s.value[1])) },
      ],
    })];
  }
  return result.map((s) => {
    const points = s.values ?? [s.value];
    return toDataFrame({
      refId: target.refId,
      fields: [
        { name: "Time", type: FieldType.time, values: points.map((p) => p[0] * 1000) },
        { name: "Value", type: FieldType.number, labels: s.metric, values: points.map((p) => number(p[1])), config: { displayNameFromDS: named(target.legendFormat, s.metric) } },
      ],
    });
  });
}

// transformed does what a board asks to be done with frames: leave fields out.
export function transformed(panel, frames) {
  for (const t of panel.transformations ?? []) {
    if (t.id !== "organize" || Object.keys(t.options).some((k) => k !== "excludeByName")) throw new Error(`transformation ${t.id} is not known here`);
    for (const f of frames) f.fields = f.fields.filter((x) => !t.options.excludeByName[x.name]);
  }
  return frames;
}

// What panels have where a board says nothing, as their plugins have it.
const customOf = {
  timeseries: { drawStyle: "line", lineInterpolation: "linear", lineWidth: 1, fillOpacity: 0, gradientMode: "none", spanNulls: false, showPoints: "auto", pointSize: 5, stacking: { mode: "none", group: "A" }, axisPlacement: "auto", scaleDistribution: { type: "linear" }, hideFrom: { legend: false, tooltip: false, viz: false }, thresholdsStyle: { mode: "off" } },
};

// configured gives every field what the board says of fields.
export function configured(panel, frames, theme) {
  const { defaults = {} } = panel.fieldConfig ?? {};
  let series = 0;
  // What is not bounded by the board spans all of a panel's values.
  const all = frames.flatMap((f) => f.fields.filter((x) => x.type === FieldType.number).flatMap((x) => x.values.filter((v) => v !== null)));
  const min = defaults.min ?? Math.min(...all), max = defaults.max ?? Math.max(...all);
  for (const frame of frames) {
    for (const field of frame.fields) {
      const custom = { ...customOf[panel.type], ...defaults.custom };
      if (field.type === FieldType.number) {
        field.config = { ...defaults, ...field.config, custom, color: defaults.color ?? { mode: panel.type === "timeseries" ? "palette-classic" : "thresholds" } };
        field.state = { ...field.state, seriesIndex: series++, range: { min, max, delta: max - min } };
      } else {
        field.config = { ...field.config, custom };
      }
      field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
    }
  }
  return frames;
}
