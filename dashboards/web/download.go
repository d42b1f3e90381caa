package web

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Formats of downloads.
const (
	FormatChrome    = "chrome"    // trace events, which Perfetto opens
	FormatRecording = "recording" // what lanetrace replay and report read
)

// Download says what is to be written.
type Download struct {
	Run    string // the run's id
	Format string // FormatChrome or FormatRecording
	Steps  Steps
}

// Steps are ranges of step numbers, both ends included.
type Steps [][2]uint64

// maxRanges bounds what one download asks for.
const maxRanges = 64

// Has reports whether step n is among them.
func (s Steps) Has(n uint64) bool {
	for _, r := range s {
		if r[0] <= n && n <= r[1] {
			return true
		}
	}
	return false
}

// parseSteps reads "5-9,12".
func parseSteps(text string) (Steps, error) {
	var out Steps
	for part := range strings.SplitSeq(text, ",") {
		first, last, is := strings.Cut(part, "-")
		if !is {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 64)
		b, err2 := strconv.ParseUint(last, 10, 64)
		if err1 != nil || err2 != nil || a > b {
			return nil, fmt.Errorf("want ranges of steps such as 5-9,12, got %.40q", part)
		}
		if len(out) == maxRanges {
			return nil, fmt.Errorf("more than %d ranges of steps", maxRanges)
		}
		out = append(out, [2]uint64{a, b})
	}
	return out, nil
}

// ErrNoRun is what Options.Download returns of a run that cannot be read any more.
var ErrNoRun = errors.New("the run is gone, and its ring with it")

// maxDownload bounds a download, which is made in memory so that a failure is an
// answer and not half a file.
const maxDownload = 64 << 20

// bounded is a buffer that takes only so much.
type bounded struct{ bytes.Buffer }

var errTooLarge = fmt.Errorf("it is larger than %d MiB: show fewer steps", maxDownload>>20)

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxDownload {
		return 0, errTooLarge
	}
	return b.Buffer.Write(p)
}

// download answers with a file of the steps that the query names.
func (p *Page) download(w http.ResponseWriter, r *http.Request) {
	if p.o.Download == nil {
		http.Error(w, "there are no downloads here", http.StatusNotFound)
		return
	}
	q := r.URL.Query()
	d := Download{Run: q.Get("run"), Format: q.Get("format")}
	steps, err := parseSteps(q.Get("steps"))
	if err == nil && d.Format != FormatChrome && d.Format != FormatRecording {
		err = fmt.Errorf("want format %s or %s, got %.40q", FormatChrome, FormatRecording, d.Format)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.Steps = steps
	select {
	case p.downloading <- struct{}{}:
		defer func() { <-p.downloading }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another download is being made: try again", http.StatusServiceUnavailable)
		return
	}
	var b bounded
	switch err := p.o.Download(&b, d); {
	case errors.Is(err, ErrNoRun):
		http.Error(w, ErrNoRun.Error(), http.StatusNotFound)
		return
	case errors.Is(err, errTooLarge):
		http.Error(w, errTooLarge.Error(), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		p.o.Logger.Warn("download failed", "run_id", d.Run, "reason", err.Error())
		http.Error(w, "the steps cannot be read: the log says why", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	name, mime := "lanetrace.json", "application/json"
	if d.Format == FormatRecording {
		name, mime = "lanetrace.ltrec", "application/octet-stream"
	}
	h.Set("Content-Type", mime)
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	_, _ = w.Write(b.Bytes()) // the client's loss
}
