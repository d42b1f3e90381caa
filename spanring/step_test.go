package spanring

import "testing"

// TestStep: every kind of entry that names a step says which; others, and what cannot
// be decoded, say none.
func TestStep(t *testing.T) {
	const step = 7
	span := Span{Kind: KindLane, Step: step, Ordinal: 1}
	kernel := Span{Kind: KindKernel, Step: step, Ordinal: 1}
	broken := Span{Kind: KindLane, Step: step} // no ordinal
	for name, c := range map[string]struct {
		w    Words
		want uint64
	}{
		"step begin":    {(&StepBegin{Step: step}).Words(), step},
		"step end":      {(&StepEnd{Step: step}).Words(), step},
		"lane":          {span.Words(), step},
		"kernel":        {kernel.Words(), step},
		"failed span":   {(&SpanFailed{Step: step, SpanKind: KindLane, Reason: FailNone + 1, Ordinal: 1}).Words(), step},
		"attributes":    {(&StepAttrs{Step: step}).Words(), step},
		"trace context": {(&StepLink{Step: step, TraceContext: TraceContext{TraceID: [16]byte{1}, SpanID: [8]byte{1}}}).Words(), step},
		"launch diff":   {(&LaunchDiff{Step: step}).Words(), step},
		"memory":        {(&MemEvent{Kind: KindAlloc}).Words(), 0},
		"broken lane":   {broken.Words(), 0},
		"nothing":       {Words{}, 0},
	} {
		if got := c.w.Step(); got != c.want {
			t.Errorf("%s: step %d, want %d", name, got, c.want)
		}
	}
}
