package report

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// requestStat is what the requests came to that ended and have a trace of their
// own.
type requestStat struct {
	taken, gpu     sketch // from begin to end, and the time of lanes of their steps
	steps, untimed uint64 // untimed: of the steps, those whose lanes were left out
	prompt, output uint64
}

// ObserveRequest takes a request in that has ended.
func (r *Run) ObserveRequest(q *collector.Request) {
	s := &r.requests
	s.taken.add(uint64(max(0, q.EndNS-q.BeginNS)))
	s.gpu.add(uint64(max(0, q.GPULaneNS)))
	s.steps += uint64(q.Steps)
	s.untimed += uint64(q.StepsUntimed)
	s.prompt += uint64(q.PromptTokens)
	s.output += uint64(q.OutputTokens)
}

// requestTable is how long requests took, nothing where none was seen.
func (r *Run) requestTable(b *strings.Builder) {
	s := &r.requests
	if s.taken.n == 0 {
		return
	}
	b.WriteByte('\n')
	table(b, "  ", r.o.Width, []string{"REQUESTS (traced)", "count", "p50", "p99", "max"}, [][]string{
		append([]string{"whole", Count(s.taken.n)}, stats(&s.taken)...),
		append([]string{"lanes of their steps", Count(s.gpu.n)}, stats(&s.gpu)...),
	})
	if s.untimed > 0 {
		fmt.Fprintf(b, "  of %s of their %s steps the lanes were left out to stay within their budget\n", Count(s.untimed), Count(s.steps))
	}
	fmt.Fprintf(b, "  %s steps linked, %s tokens generated from %s of prompts\n", Count(s.steps), Count(s.output), Count(s.prompt))
}

// ExportRequest writes one request. It implements collector.RequestExporter; see
// Export for errors.
func (l *Lines) ExportRequest(q *collector.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.begin()
		detail := fmt.Sprintf("trace %s, %d steps, %s µs in lanes, %d tokens from %d",
			hex.EncodeToString(q.TraceID[:]), q.Steps, microseconds(q.GPULaneNS), q.OutputTokens, q.PromptTokens)
		if q.StepsOpen > 0 {
			detail += fmt.Sprintf(", %d steps still open", q.StepsOpen)
		}
		if q.StepsUntimed > 0 {
			detail += fmt.Sprintf(", lanes of %d steps left out", q.StepsUntimed)
		}
		l.row(q.Engine, q.UnixNS(q.BeginNS), "-", "request", 0, q.EndNS-q.BeginNS, detail)
		if _, err := l.w.Write(l.b); err != nil {
			l.err = fmt.Errorf("write request: %w", err)
		}
	}
	if l.err != nil {
		q.Engine.Ledger().Drop(collector.DropRefused, 1)
		return
	}
	q.Engine.Ledger().Export(1)
}

// RequestsReport are the requests that ended and have a trace of their own.
type RequestsReport struct {
	Taken        Distribution `json:"taken"`
	GPULanes     Distribution `json:"gpu_lanes"`
	Steps        uint64       `json:"linked_steps"`
	Untimed      uint64       `json:"linked_steps_lanes_untimed"` // gpu_lanes lacks their time
	PromptTokens uint64       `json:"prompt_tokens"`
	OutputTokens uint64       `json:"output_tokens"`
}

func (s *requestStat) report() RequestsReport {
	return RequestsReport{distribution(&s.taken), distribution(&s.gpu), s.steps, s.untimed, s.prompt, s.output}
}

// RankReport is an engine's place in its parallel groups; -1 is none.
type RankReport struct {
	Data     int32 `json:"data"`
	Tensor   int32 `json:"tensor"`
	Pipeline int32 `json:"pipeline"`
	Expert   int32 `json:"expert"`
}

func rankReport(r spanring.Rank) RankReport {
	return RankReport{r.Data, r.Tensor, r.Pipeline, r.Expert}
}

// linkTexts are the requests that a step worked for, as trace and span id.
func linkTexts(s *collector.Step) []string {
	out := []string{}
	for _, l := range s.Links {
		out = append(out, hex.EncodeToString(l.TraceID[:])+"-"+hex.EncodeToString(l.SpanID[:]))
	}
	return out
}
