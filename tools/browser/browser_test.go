package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// tab is one page of a browser of its own, and what its console was told.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// newTab opens url in a headless Chromium. Scripts, if any, run in the page before its
// own.
func newTab(t *testing.T, url string, scripts ...string) *tab {
	t.Helper()
	dir, err := os.MkdirTemp("", "lanetrace-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	// The browser's helpers write to it a moment longer than the browser lives.
	t.Cleanup(func() { poll(t, "end of the browser's files", func() bool { return os.RemoveAll(dir) == nil }) })
	flags := []chromedp.ExecAllocatorOption{
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Headless,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), // a container's may be too small for a page
		chromedp.UserDataDir(dir), chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(patience),
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), flags...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*patience)
	t.Cleanup(func() {
		// Ends the browser, and waits for it. One whose context ends is killed, and leaves
		// files behind.
		_ = chromedp.Cancel(ctx)
		cancel()
	})
	b := &tab{t: t, ctx: ctx}
	note := func(format string, args ...any) {
		b.mu.Lock()
		b.problems = append(b.problems, fmt.Sprintf(format, args...))
		b.mu.Unlock()
	}
	chromedp.ListenTarget(ctx, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert {
				text := ""
				for _, a := range e.Args {
					text += " " + string(a.Value) + a.Description
				}
				note("console.%s:%s", e.Type, text)
			}
		case *runtime.EventExceptionThrown:
			note("exception: %s", e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
				note("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
			}
		case *page.EventJavascriptDialogOpening:
			note("dialog: %s", e.Message)
		}
	})
	for _, s := range scripts {
		b.do(chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := page.AddScriptToEvaluateOnNewDocument(s).Do(ctx)
			return err
		}))
	}
	b.do(chromedp.Navigate(url))
	// The end of the blank page that a browser begins with may be taken for that of this one.
	b.until("page at "+url, `globalThis.lanetrace !== undefined`)
	return b
}

func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// js evaluates an expression.
func js[T any](b *tab, expression string) (v T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v))
	return v
}

// until waits until an expression is true. One that cannot be evaluated, as while a page
// follows another, is not.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	poll(b.t, what, func() (is bool) {
		err := chromedp.Run(b.ctx, chromedp.Evaluate("!!("+expression+")", &is))
		switch {
		case b.ctx.Err() != nil:
			b.t.Fatal(err)
		case err != nil:
			b.t.Logf("no %s yet: %v", what, err)
		}
		return err == nil && is
	})
}

// key presses a key on the page.
func (b *tab) key(k string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(k))
}

// mouse sends a mouse event.
func (b *tab) mouse(typ input.MouseType, x, y float64, more func(*input.DispatchMouseEventParams)) {
	b.t.Helper()
	p := input.DispatchMouseEvent(typ, x, y)
	if more != nil {
		more(p)
	}
	b.do(p)
}

// clean fails the test for what the console was told, but for what is expected.
func (b *tab) clean(expected ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, p := range b.problems {
		for _, e := range expected {
			if strings.Contains(p, e) {
				continue next
			}
		}
		b.t.Error(p)
	}
}

func (b *tab) denyDownloads() {
	b.do(browser.SetDownloadBehavior(browser.SetDownloadBehaviorBehaviorDeny))
}

// picture writes what an element shows as NAME.png, if pictures are wanted.
func (b *tab) picture(name, selector string, width int64) {
	b.t.Helper()
	dir := os.Getenv("LANETRACE_IMAGES")
	if dir == "" {
		return
	}
	var png []byte
	b.do(emulation.SetDeviceMetricsOverride(width, 900, 1, false), chromedp.Evaluate(`new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`, nil,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if selector == "" {
		b.do(chromedp.FullScreenshot(&png, 100))
	} else {
		b.do(chromedp.Screenshot(selector, &png, chromedp.ByQuery))
	}
	small, err := fewColors(png)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), small, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
	b.do(emulation.ClearDeviceMetricsOverride())
}
