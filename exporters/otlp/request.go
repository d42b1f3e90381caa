package otlp

import "github.com/lanetrace/lanetrace/collector"

// ExportRequest encodes the summary of a request and queues it. It implements
// collector.RequestExporter.
func (x *Exporter) ExportRequest(r *collector.Request) {
	st := x.engine(r.Engine)
	st.mu.Lock()
	defer st.mu.Unlock()
	b := appendRequest(x.q.buffer(), r, st.enc.model)
	if len(b) > st.enc.maxBytes {
		x.q.unused(b)
		r.Engine.Ledger().Drop(collector.DropOversize, 1)
		x.stats.oversize.Add(1)
		return
	}
	if x.q.push(item{chunk: chunk{buf: b, units: 1, spans: 1}, eng: st}) {
		signal(x.some)
	}
	if b, _ := x.q.size(); b >= x.o.FlushBytes {
		signal(x.enough)
	}
}

// ExportRequest writes one line. It implements collector.RequestExporter.
func (j *JSONWriter) ExportRequest(r *collector.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		i := r.Engine.Info()
		j.buf = appendRequest(j.buf[:0], r, collector.CleanText(i.Model))
		j.err = j.line(r.Engine, &i, "request")
	}
	if j.err != nil {
		r.Engine.Ledger().Drop(collector.DropRefused, 1)
		return
	}
	r.Engine.Ledger().Export(1)
}

// appendRequest writes the summary span of a request, in the request's own trace,
// below the span that the engine named: another process made it, as far as we
// know.
func appendRequest(b []byte, r *collector.Request, model string) []byte {
	parent := collector.SpanID(r.SpanID)
	b, at := appendHead(b, r.TraceID, r.SummaryID(), &parent, spanRequest, r.UnixNS(r.BeginNS), r.UnixNS(r.EndNS))
	b = keySpanKind.appendString(b, tagSpanAttribute, spanRequest)
	b = keySteps.appendInt(b, tagSpanAttribute, int64(r.Steps))
	b = keyStepsExported.appendInt(b, tagSpanAttribute, int64(r.ExportedCount))
	if r.StepsOpen > 0 {
		b = keyStepsOpen.appendInt(b, tagSpanAttribute, int64(r.StepsOpen))
	}
	if r.StepsUntimed > 0 {
		b = keyStepsUntimed.appendInt(b, tagSpanAttribute, int64(r.StepsUntimed))
	}
	if r.Gapped {
		b = keyGapped.appendBool(b, tagSpanAttribute, true)
	}
	b = keyRequestLane.appendInt(b, tagSpanAttribute, r.GPULaneNS)
	b = keyInputTokens.appendInt(b, tagSpanAttribute, int64(r.PromptTokens))
	b = keyOutputTokens.appendInt(b, tagSpanAttribute, int64(r.OutputTokens))
	if model != "" {
		b = keyModel.appendString(b, tagSpanAttribute, model)
	}
	run := r.Engine.RunID()
	for _, n := range r.Exported {
		trace := collector.StepTraceID(run, n)
		b = appendLink(b, trace, trace.RootID(), ownFlags)
	}
	if n := r.ExportedCount - len(r.Exported); n > 0 {
		b = appendUint(b, tagSpanDropLinks, uint64(n))
	}
	return appendTail(b, at, uint32(r.Flags)|flagKnowsRemote|flagRemote)
}
