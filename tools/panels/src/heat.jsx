// A heat map of a classic histogram's buckets. Grafana's components have none: this one
// stands in, with the colours and the scale that the board asks for.
import React from "react";
import { FieldType, formattedValueToString, getValueFormat } from "@grafana/data";

const bound = (le) => (le === "+Inf" ? Infinity : Number(le));
const left = 64, below = 22;

export function Heat({ panel, frames, w, h, theme, timeRange }) {
  const canvas = React.useRef(null);
  React.useEffect(() => {
    // By their upper ends; each holds what those below it hold, too.
    const buckets = frames.map((f) => ({ le: bound(f.fields[1].labels.le), t: f.fields[0].values, v: f.fields[1].values })).sort((a, b) => a.le - b.le);
    const cells = new Map();
    let most = 0;
    buckets.forEach((b, i) => b.t.forEach((t, j) => {
      const k = buckets[i - 1]?.t.indexOf(t) ?? -1;
      const n = Math.max(0, (b.v[j] ?? 0) - (k >= 0 ? buckets[i - 1].v[k] ?? 0 : 0));
      if (n > 0) cells.set(`${i} ${t}`, n);
      most = Math.max(most, n);
    }));
    const used = buckets.map((_, i) => i).filter((i) => [...cells.keys()].some((k) => k.startsWith(i + " ")));
    if (used.length === 0) return;
    const low = used[0], high = used[used.length - 1];
    const g = canvas.current.getContext("2d");
    const a = timeRange.from.valueOf(), z = timeRange.to.valueOf(), ch = (h - below) / (high - low + 1);
    const unit = getValueFormat(panel.options.yAxis.unit);
    g.clearRect(0, 0, w, h);
    g.font = "12px sans-serif";
    const times = [...new Set(buckets.flatMap((b) => [...b.t]))].sort((x, y) => x - y);
    const cw = (w - left) * (times.length > 1 ? (times[1] - times[0]) / (z - a) : 1);
    for (const [k, n] of cells) {
      const [i, t] = k.split(" ").map(Number);
      g.fillStyle = theme.visualization.getColorByName(panel.options.color.fill);
      g.globalAlpha = 0.1 + 0.9 * (n / most) ** panel.options.color.exponent;
      g.fillRect(left + ((t - a) / (z - a)) * (w - left) - cw, h - below - (i - low + 1) * ch, Math.max(1, cw - panel.options.cellGap), Math.max(1, ch - panel.options.cellGap));
    }
    g.globalAlpha = 1;
    g.fillStyle = theme.colors.text.secondary;
    const every = Math.ceil(16 / ch);
    for (let i = low; i <= high; i += every) g.fillText(Number.isFinite(buckets[i].le) ? formattedValueToString(unit(buckets[i].le)) : "+Inf", 2, Math.max(10, h - below - (i - low) * ch - 4));
    for (let i = 0; i < 5; i++) g.fillText(new Date(a + ((i + 0.5) / 5) * (z - a)).toISOString().slice(11, 19), left + ((i + 0.3) / 5) * (w - left), h - 6);
  });
  return <canvas ref={canvas} width={w} height={h} aria-label={frames[0]?.fields.find((f) => f.type === FieldType.number)?.name} />;
}
