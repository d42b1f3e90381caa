package browser

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// A page whose server goes says so, and goes on with the next one at the same
// address.
func TestReconnects(t *testing.T) {
	addr, stop := startAt(t, free(t), "demo")
	b := newTab(t, "http://"+addr+"/")
	b.until("steps", `globalThis.lanetrace?.held().length > 0 && document.getElementById("link").className === "live"`)
	run, server := js[string](b, `lanetrace.state().engines[0].run`), js[string](b, `lanetrace.state().server`)
	stop()
	b.until("word that the server is away", `document.getElementById("link").className === "away"`)
	if text := js[string](b, `document.getElementById("link").textContent`); text != "no answer, trying again" {
		t.Errorf("said %q", text)
	}
	startAt(t, addr, "demo")
	b.until("the next server's steps", `document.getElementById("link").className === "live" && lanetrace.state().server !== "`+server+`" && lanetrace.held().length > 0`)
	if again := js[string](b, `lanetrace.state().engines[0].run`); again == run {
		t.Errorf("the run is still %s", run)
	}
	b.clean(away...)
}

// away is what a browser says of a server that goes while it is talked to.
var away = []string{"ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"}

// A view that stands still does so while its server, and then its engine, is followed by
// another; following again shows what there is now.
func TestStandsStill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rings")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	serve := func() (stop func()) {
		stop, _ = run(t, engine, "--backend", "sim", "--dir", dir, "--no-verify", "--level", "lane", "--duration", "1h")
		return stop
	}
	stopEngine := serve()
	addr, stop := startAt(t, free(t), "sidecar", "--dir", dir)
	b := newTab(t, "http://"+addr+"/")
	b.until("steps", `globalThis.lanetrace?.held().length > 8 && lanetrace.state()?.engine`)
	b.key("[") // selects a step
	seen := func() string {
		return js[string](b, `JSON.stringify([lanetrace.timeline.a, lanetrace.timeline.z, lanetrace.held().map((s) => s.n), document.getElementById("details").textContent])`)
	}
	shown := func() string { return js[string](b, `document.getElementById("shown").textContent`) }
	still, server, run := seen(), js[string](b, `lanetrace.state().server`), js[string](b, `lanetrace.state().engines[0].run`)
	stop()
	b.until("word that the server is away", `document.getElementById("link").className === "away"`)
	startAt(t, addr, "sidecar", "--dir", dir)
	b.until("the next server", `document.getElementById("link").className === "live" && lanetrace.state().server !== "`+server+`" && lanetrace.state().engine`)
	b.until("newer steps", `/ [\d,]+ newer: F follows$/.test(document.getElementById("shown").textContent)`)
	if now := seen(); now != still {
		t.Errorf("after a restart of the server %s, before %s", now, still)
	}

	stopEngine()
	serve()
	b.until("the next engine", `lanetrace.state().engine?.state === "live" && document.getElementById("about").title && document.getElementById("about").title !== "run `+run+`"`)
	if now, text := seen(), shown(); now != still || !strings.HasSuffix(text, " of run "+run[:8]+", an earlier one: F follows") {
		t.Errorf("of another engine %s, before %s; it says %q", now, still, text)
	}
	b.key("f")
	b.until("its steps", `lanetrace.held().length > 8 && !/earlier|newer/.test(document.getElementById("shown").textContent)`)
	if now := seen(); now == still {
		t.Error("what is followed stands still")
	}
	b.clean(away...)
}

// Where there is nothing yet the page says what it waits for.
func TestNothingYet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rings")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	addr, stop := startAt(t, free(t), "sidecar", "--dir", dir)
	b := newTab(t, "http://"+addr+"/")
	b.until("what is waited for", `document.querySelector("#notes .note")`)
	if text := js[string](b, `document.getElementById("notes").textContent`); !strings.HasPrefix(text, "No engine yet: rings are looked for in "+dir+".") {
		t.Errorf("said %q", text)
	}
	for _, id := range []string{"lanes", "kernels", "sites"} {
		if text := js[string](b, `document.querySelector("#`+id+` tbody").textContent`); text == "" {
			t.Errorf("table %s is empty and says nothing", id)
		}
		if cut := js[bool](b, `((c) => c.scrollWidth > c.clientWidth)(document.querySelector("#`+id+` tbody td"))`); cut {
			t.Errorf("what table %s says is cut off", id)
		}
	}
	b.clean()

	// What was there is gone when the next server has nothing.
	stop()
	_, stop = startAt(t, addr, "demo")
	b.until("steps", `lanetrace.held().length > 0`)
	stop()
	startAt(t, addr, "sidecar", "--dir", dir)
	b.until("nothing", `document.getElementById("link").className === "live" && lanetrace.held().length === 0 && document.querySelector("#notes .note")`)
	if text := js[string](b, `document.getElementById("about").textContent`); text != "" || !js[bool](b, `document.getElementById("get-chrome").disabled`) {
		t.Errorf("of nothing it says %q", text)
	}
	b.clean(away...)
}

// Names that mean harm are shown as what they are.
func TestHostileNames(t *testing.T) {
	addr, _ := start(t, "demo")
	script := `<script>alert(1)</script><img src=x onerror=alert(2)>"'` + "`${alert(3)}"
	long := strings.Repeat("Ж", 1000)
	names := map[string]string{"decode": script, "matmul": long, "examples/decode/model.go:171": script + long, "NVIDIA H200": script, "admit": "__proto__", "prefill": "constructor"}
	// Between the page and its server: the names of the recording are exchanged.
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+addr+r.URL.RequestURI(), nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		if r.URL.Path != "/live/events" {
			_, _ = io.Copy(w, resp.Body) // the browser's loss
			return
		}
		sc := bufio.NewScanner(resp.Body)
		sc.Buffer(nil, 64<<20)
		for sc.Scan() {
			line := sc.Text()
			for from, to := range names {
				q, _ := json.Marshal(to) // a string always can be
				line = strings.ReplaceAll(line, `"`+from+`"`, string(q))
			}
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				return
			}
			if line == "" {
				_ = http.NewResponseController(w).Flush() // its end ends the loop
			}
		}
	}))
	t.Cleanup(proxy.Close)
	b := newTab(t, proxy.URL+"/")
	b.until("lanes and kernels", `globalThis.lanetrace?.held().some((s) => s.armed) && document.querySelectorAll("#lanes tbody tr").length === 3 && document.querySelectorAll("#kernels tbody tr").length > 3`)
	cells := js[[]string](b, `[...document.querySelectorAll("#lanes td:first-child, #kernels td:first-child, #sites td:first-child")].map((c) => c.textContent)`)
	for _, want := range []string{script, long, script + long, "__proto__", "constructor"} {
		found := false
		for _, c := range cells {
			found = found || c == want
		}
		if !found {
			t.Errorf("%.60q is not shown as it is", want)
		}
	}
	if about := js[string](b, `document.getElementById("about").textContent`); !strings.Contains(about, script) {
		t.Errorf("about: %q", about)
	}
	// On the timeline, too: a lane of that name is selected.
	b.do(chromedp.Evaluate(`lanetrace.timeline.select(lanetrace.held().flatMap((s) => s.spans).findLast((p) => p.kind === 0 && p.name.title.startsWith("<script>")))`, nil))
	if d := js[string](b, `document.getElementById("details").textContent`); !strings.HasPrefix(d, script+" · lane of step ") {
		t.Errorf("details: %.400q", d)
	}
	if n := js[int](b, `document.querySelectorAll("main img, main script, main iframe").length`); n != 0 {
		t.Errorf("%d elements were made of names", n)
	}
	if wide := js[bool](b, `document.documentElement.scrollWidth > innerWidth`); wide {
		t.Error("long names make the page wider than the window")
	}
	b.clean()
}
