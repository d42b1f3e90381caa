package spanring

// Step is the step that an entry belongs to, 0 for none and for an entry that cannot
// be decoded.
func (w *Words) Step() uint64 {
	switch w.Kind() {
	case KindLane, KindKernel, KindGraph:
		e, err := w.Span()
		return stepUnless(err, e.Step)
	case KindStepBegin:
		e, err := w.StepBegin()
		return stepUnless(err, e.Step)
	case KindStepEnd:
		e, err := w.StepEnd()
		return stepUnless(err, e.Step)
	case KindSpanFailed:
		e, err := w.SpanFailed()
		return stepUnless(err, e.Step)
	case KindStepAttrs:
		e, err := w.StepAttrs()
		return stepUnless(err, e.Step)
	case KindTraceContext:
		e, err := w.StepLink()
		return stepUnless(err, e.Step)
	case KindLaunchDiff:
		e, err := w.LaunchDiff()
		return stepUnless(err, e.Step)
	}
	return 0
}

func stepUnless(err error, step uint64) uint64 {
	if err != nil {
		return 0
	}
	return step
}
