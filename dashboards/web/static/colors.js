// Colours: names keep theirs as long as the page is open.

// Told apart by eyes that lack one kind of cones, too; a test holds this.
export const palettes = {
  light: ["#3253ef", "#d67c0a", "#1ea36a", "#d7319f", "#701d9b", "#7c3229", "#3296ed", "#85570b"],
  dark: ["#6c7bf5", "#f3d32c", "#40b165", "#cb6fa3", "#96aaf5", "#e8630a", "#a4dcf5", "#bae072"],
};
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
  const p = palettes[theme()];
  return p[(i + (of === "kernel" ? 3 : 0)) % p.length];
}

// inkOn is black or white, whichever is legible on a colour of the palettes.
export function inkOn(color) {
  const [r, g, b] = [1, 3, 5].map((i) => (parseInt(color.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

// cssColor is a colour of the style sheet.
export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
