package spanring

// Step is the step that an entry belongs to, 0 for none and for an entry that cannot
// be decoded.
func (w *Words) Step() (step uint64) {
	var err error
	switch w.Kind() {
	case KindLane, KindKernel, KindGraph:
		var e Span
		e, err = w.Span()
		step = e.Step
	case KindStepBegin:
		var e StepBegin
		e, err = w.StepBegin()
		step = e.Step
	case KindStepEnd:
		var e StepEnd
		e, err = w.StepEnd()
		step = e.Step
	case KindSpanFailed:
		var e SpanFailed
		e, err = w.SpanFailed()
		step = e.Step
	case KindStepAttrs:
		var e StepAttrs
		e, err = w.StepAttrs()
		step = e.Step
	case KindTraceContext:
		var e StepLink
		e, err = w.StepLink()
		step = e.Step
	case KindLaunchDiff:
		var e LaunchDiff
		e, err = w.LaunchDiff()
		step = e.Step
	}
	if err != nil {
		return 0
	}
	return step
}
