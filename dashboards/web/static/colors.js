// Colours: names keep theirs as long as the page is open.

const light = ["#3b7dd8", "#d9822b", "#3f9b57", "#b4519f", "#c24b4b", "#5d6bc4", "#8b7a24", "#2a9d9d"];
const dark = ["#69a9f5", "#f0a65a", "#77c98b", "#d98bc9", "#ef8585", "#98a4f0", "#cdb957", "#66cccc"];
const order = new Map();

export const theme = () => document.documentElement.dataset.theme;

// colorOf is a name's colour in the theme.
export function colorOf(name) {
  let i = order.get(name);
  if (i === undefined) {
    i = order.size;
    order.set(name, i);
  }
  const p = theme() === "dark" ? dark : light;
  return p[i % p.length];
}

// cssColor is a colour of the style sheet.
export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
