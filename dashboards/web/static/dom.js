// Elements. Text from an engine gets into the page through here alone, as text.

export const byID = (id) => document.getElementById(id);

// el makes an element; children that are no elements become text.
export function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (k === "color") e.style.background = v;
    else if (v !== undefined) e.setAttribute(k, v);
  }
  e.append(...children.map((c) => (c instanceof Node ? c : String(c))));
  return e;
}

// rows replaces a table's rows: arrays of cells, texts or elements. A text alone
// is said across all columns.
export function rows(table, list) {
  const body = table.tBodies[0];
  body.replaceChildren(...list.map((cells) => !Array.isArray(cells) ? el("tr", {}, el("td", { class: "none", colspan: [...table.tHead.rows[0].cells].filter((c) => c.offsetParent).length }, cells)) : el("tr", {}, ...cells.map((c) => {
    const td = el("td", {}, c);
    if (!(c instanceof Node)) td.title = String(c);
    return td;
  }))));
}

// facts replaces a list of terms: [term, text, class, what it is].
export function facts(dl, list) {
  dl.replaceChildren(...list.map(([term, text, cls, title]) => el("div", { title }, el("dt", {}, term), el("dd", { class: cls }, text))));
}

// tip shows lines beside a place of the window, or goes.
export function tip(lines, x, y) {
  const t = byID("tip");
  t.hidden = !lines;
  if (!lines) return;
  t.textContent = lines.join("\n");
  const r = t.getBoundingClientRect();
  t.style.left = Math.max(4, Math.min(x + 14, innerWidth - r.width - 8)) + "px";
  t.style.top = (y + 18 + r.height > innerHeight ? Math.max(4, y - r.height - 12) : y + 18) + "px";
}
