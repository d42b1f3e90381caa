// Draws boards with Grafana's own components and tells what became of each panel.
//
//	node render.mjs --prometheus URL --boards DIR [--only NAME,NAME] [--out DIR] [--end UNIX] [--seconds N]
//
// Every board of DIR, or those named, is drawn of what that Prometheus has of the last
// N seconds (default 120) before END (default now). Standard output has JSON: by board, its
// panels with their type, how many series there were, what is wrong, and whether
// anything was drawn. With --out a picture board-NAME.webp of each board is written there.
// CHROMIUM names the browser (default /usr/bin/chromium).
import { build } from "esbuild";
import { createServer } from "node:http";
import { readdir, readFile } from "node:fs/promises";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import puppeteer from "puppeteer-core";

const here = dirname(fileURLToPath(import.meta.url));
const { values: o } = parseArgs({
  options: {
    prometheus: { type: "string" }, boards: { type: "string" }, out: { type: "string" }, only: { type: "string" }, end: { type: "string", default: String(Date.now() / 1000) },
    seconds: { type: "string", default: "120" }, step: { type: "string", default: "2" }, rate: { type: "string", default: "1m" },
  },
});
if (!o.prometheus || !o.boards) {
  console.error("render.mjs: --prometheus and --boards are needed");
  process.exit(2);
}

// bundle is the page's script and its style sheet.
async function bundle() {
  const r = await build({
    entryPoints: [join(here, "src", "app.jsx")], bundle: true, write: false, outdir: here, format: "iife", jsx: "automatic", minify: true,
    define: { "process.env.NODE_ENV": '"production"' }, logLevel: "error",
    loader: { ".svg": "dataurl", ".ttf": "empty", ".woff2": "empty" },
  });
  return Object.fromEntries(r.outputFiles.map((f) => [extname(f.path), f.text]));
}

const html = `<!doctype html><html lang="en"><meta charset="utf-8"><title>boards</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/app.css"><body style="margin:0"><div id="root"></div><script src="/app.js"></script></body></html>`;

// serve has the page, the boards, and Prometheus below /api.
async function serve(page) {
  const server = createServer(async (req, res) => {
    const path = new URL(req.url, "http://x").pathname;
    try {
      if (path === "/") return res.setHeader("Content-Type", "text/html").end(html);
      if (path === "/app.js") return res.setHeader("Content-Type", "text/javascript").end(page[".js"]);
      if (path === "/app.css") return res.setHeader("Content-Type", "text/css").end(page[".css"]);
      if (/^\/public\/build\/img\/icons\/[a-z0-9/-]+\.svg$/.test(path)) return res.setHeader("Content-Type", "image/svg+xml").end(await readFile(join(here, "node_modules/@grafana/ui/dist", path.replace("/build", ""))));
      if (/^\/boards\/[a-z]+\.json$/.test(path)) return res.setHeader("Content-Type", "application/json").end(await readFile(join(o.boards, path.slice("/boards/".length))));
      if (path.startsWith("/api/")) {
        const r = await fetch(o.prometheus + req.url);
        return res.writeHead(r.status, { "Content-Type": "application/json" }).end(await r.text());
      }
      res.writeHead(404).end();
    } catch (e) {
      res.writeHead(502).end(String(e));
    }
  });
  await new Promise((r) => server.listen(0, "127.0.0.1", r));
  return server;
}

const patience = 180000; // ms, for what takes a second or two where nobody else wants the processors
const server = await serve(await bundle());
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, timeout: patience, protocolTimeout: patience,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const out = {};
try {
  for (const file of (await readdir(o.boards)).filter((f) => f.endsWith(".json")).sort()) {
    const board = file.slice(0, -".json".length);
    if (o.only && !o.only.split(",").includes(board)) continue;
    const page = await browser.newPage();
    page.setDefaultTimeout(patience);
    const problems = [];
    page.on("pageerror", (e) => problems.push(String(e)));
    page.on("console", async (m) => {
      if (m.type() !== "error" || m.location().url?.includes("/public/fonts/")) return; // Grafana's font is not in its packages
      const said = await Promise.all(m.args().map((a) => a.evaluate((v) => String(v?.stack ?? v)).catch(() => "")));
      problems.push([m.text(), ...said, m.location().url].join(" ").slice(0, 500));
    });
    // All of it in view: what is not is not laid out.
    const { panels } = JSON.parse(await readFile(join(o.boards, file), "utf8"));
    await page.setViewport({ width: 1600, deviceScaleFactor: o.out ? 0.75 : 1, height: Math.max(...panels.map((p) => p.gridPos.y + p.gridPos.h)) * 38 });
    await page.goto(`http://127.0.0.1:${server.address().port}/?` + new URLSearchParams({ board, end: o.end, seconds: o.seconds, step: o.step, rate: o.rate }));
    await page.waitForFunction("globalThis.drawn || globalThis.failed");
    const failed = await page.evaluate("globalThis.failed ?? ''");
    if (failed) throw new Error(`${board}: ${failed}`);
    out[board] = { problems, panels: await page.evaluate("globalThis.drawn") };
    if (o.out) await (await page.$("#board")).screenshot({ path: join(o.out, `board-${board}.webp`), type: "webp", quality: 80 });
    await page.close();
  }
} finally {
  await browser.close();
  server.close();
}
console.log(JSON.stringify(out));
