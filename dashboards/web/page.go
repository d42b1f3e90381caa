package web

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/top"
)

// ContentSecurityPolicy is what the page needs of a browser, and no more: its own
// scripts, styles, pictures and stream, and nothing inline.
const ContentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed static
var static embed.FS

// Options say what a Page shows.
type Options struct {
	// Engines are the runs known now; nil as long as nothing is read. Required.
	Engines func() []*collector.Engine
	// Download writes steps of a run to w in a format: see Download. It is called once
	// at a time. Default nil: there are no downloads.
	Download func(w io.Writer, d Download) error
	// Waiting says what is waited for while there is no engine, such as where rings
	// are looked for. One line.
	Waiting string
	// Version is the program's.
	Version string
	// MaxViewers bounds the streams that are open at a time; more are told to come
	// again later. Default 16.
	MaxViewers int
	// Refresh is how often a viewer is sent new steps. Default 250 ms; everything else
	// follows every fourth time.
	Refresh time.Duration
	// MemoryEvery is how often the memory of every engine is looked at for the chart of
	// the last ten minutes, which takes a millisecond or two of a full table. Default 2 s.
	MemoryEvery time.Duration
	// Logger takes what cannot be answered. Default discards.
	Logger *slog.Logger
}

// Page is the live page of any number of engines. Its methods may be called from
// any goroutine.
type Page struct {
	o       Options
	view    *top.View
	mux     *http.ServeMux
	started string // tells this page from an earlier one at the same address

	mu      sync.Mutex
	tracks  map[*collector.Engine]*track
	clock   uint64
	viewers int

	downloading chan struct{} // holds one token
	done        chan struct{}
	stop        func()
	wait        sync.WaitGroup
}

// New makes a page and starts a goroutine that looks at the engines' memory, until
// Close.
func New(o Options) *Page {
	if o.MaxViewers == 0 {
		o.MaxViewers = 16
	}
	if o.Refresh == 0 {
		o.Refresh = 250 * time.Millisecond
	}
	if o.MemoryEvery == 0 {
		o.MemoryEvery = 2 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Page{
		o: o, view: top.New(), mux: http.NewServeMux(), started: fmt.Sprint(time.Now().UnixNano()),
		tracks: make(map[*collector.Engine]*track), downloading: make(chan struct{}, 1), done: make(chan struct{}),
	}
	p.stop = sync.OnceFunc(func() { close(p.done) })
	files, err := fs.Sub(static, "static")
	if err != nil { // the name is valid: it cannot be
		files = static
	}
	p.mux.Handle("GET /live/", http.StripPrefix("/live/", onlyFiles(http.FileServerFS(files))))
	p.mux.HandleFunc("GET /live/events", p.events)
	p.mux.HandleFunc("GET /live/download", p.download)
	p.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "page.html") })
	p.wait.Go(p.watch)
	return p
}

// onlyFiles answers nothing for folders, which a file server would list.
func onlyFiles(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "" || r.URL.Path[len(r.URL.Path)-1] == '/' {
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ServeHTTP answers / and /live/.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// Close ends all streams and the page's goroutine. What is asked for afterwards
// gets no stream.
func (p *Page) Close() {
	p.stop()
	p.wait.Wait()
}

// ObserveStep takes a closed step in. It copies what it keeps, and allocates only
// while a run is new.
func (p *Page) ObserveStep(s *collector.Step) {
	p.view.ObserveStep(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.track(s.Engine).add(s)
}

// track is what is kept of a run. The caller holds mu.
func (p *Page) track(e *collector.Engine) *track {
	t := p.tracks[e]
	if t == nil {
		if len(p.tracks) >= maxRuns {
			p.dropOldest()
		}
		t = newTrack(e)
		p.tracks[e] = t
	}
	p.clock++
	t.touched = p.clock
	return t
}

func (p *Page) dropOldest() {
	var oldest *track
	for _, t := range p.tracks {
		if oldest == nil || t.touched < oldest.touched {
			oldest = t
		}
	}
	p.forget(oldest.engine)
}

func (p *Page) forget(e *collector.Engine) {
	delete(p.tracks, e)
	p.view.Forget(e)
}

// watch looks at the memory of engines, and lets go of those that are forgotten.
func (p *Page) watch() {
	tick := time.NewTicker(p.o.MemoryEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-tick.C:
		}
		es := p.o.Engines()
		for _, e := range es {
			if e.State() != collector.EngineLive {
				continue
			}
			m, now := e.Memory(), e.NowMonoNS()
			p.mu.Lock()
			if t := p.tracks[e]; t != nil {
				t.memory.add(now, &m)
			}
			p.mu.Unlock()
		}
		p.mu.Lock()
		for e := range p.tracks {
			if !slices.Contains(es, e) {
				p.forget(e)
			}
		}
		p.mu.Unlock()
	}
}

// enter lets a viewer in, if there is room.
func (p *Page) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return false
	default:
	}
	if p.viewers >= p.o.MaxViewers {
		return false
	}
	p.viewers++
	return true
}

func (p *Page) leave() {
	p.mu.Lock()
	p.viewers--
	p.mu.Unlock()
}
