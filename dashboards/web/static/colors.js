// Colours: names keep theirs as long as the page is open.

const light = ["#3b7dd8", "#d9822b", "#3f9b57", "#b4519f", "#c24b4b", "#5d6bc4", "#8b7a24", "#2a9d9d"];
const dark = ["#69a9f5", "#f0a65a", "#77c98b", "#d98bc9", "#ef8585", "#98a4f0", "#cdb957", "#66cccc"];
// Lanes, kernels and call sites have orders of their own, so that the few lanes
// never share a colour because there are many kernels.
const orders = { lane: new Map(), kernel: new Map(), site: new Map() };

export const theme = () => document.documentElement.dataset.theme;

// colorOf is a name's colour in the theme; of is lane, kernel or site.
export function colorOf(name, of) {
  const order = orders[of];
  let i = order.get(name);
  if (i === undefined) {
    i = order.size;
    order.set(name, i);
  }
  const p = theme() === "dark" ? dark : light;
  return p[(i + (of === "kernel" ? 3 : 0)) % p.length];
}

// cssColor is a colour of the style sheet.
export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
