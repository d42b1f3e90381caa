package chrome

import (
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/lanetrace/lanetrace/collector"
)

// requestName is a request as steps and requests show it: trace and span id.
func requestName(c *collector.TraceContext) string {
	return hex.EncodeToString(c.TraceID[:]) + "-" + hex.EncodeToString(c.SpanID[:])
}

// ExportRequest writes one request. It implements collector.RequestExporter; see
// Export for errors.
func (w *Writer) ExportRequest(r *collector.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.err
	if err == nil && w.closed {
		err = errClosed
	}
	if err == nil {
		if err = w.request(r); err != nil {
			err = fmt.Errorf("write request %s: %w", requestName(&r.TraceContext), err)
			w.err = err
		}
	}
	if err != nil {
		r.Engine.Ledger().Drop(collector.DropRefused, 1)
		return
	}
	r.Engine.Ledger().Export(1)
}

func (w *Writer) request(r *collector.Request) error {
	w.begin(r.UnixNS(r.BeginNS))
	p := w.process(r.Engine, r.WallOffsetNS)
	w.async(p, hostTID, "request", "request", r.BeginNS, r.EndNS, func() {
		w.text("request", requestName(&r.TraceContext))
		w.int("prompt_tokens", int64(r.PromptTokens))
		w.int("output_tokens", int64(r.OutputTokens))
		w.int("steps", int64(r.Steps))
		w.int("steps_open", int64(r.StepsOpen))
		if r.Gapped {
			w.bool("gapped", true)
		}
		w.int("gpu_lane_ns", r.GPULaneNS)
		w.int("steps_lanes_untimed", int64(r.StepsUntimed))
		w.texts("exported_steps", len(r.Exported), func(i int) string { return strconv.FormatUint(r.Exported[i], 10) })
		w.int("exported_steps_left_out", int64(r.ExportedCount-len(r.Exported)))
	})
	return w.flush()
}
