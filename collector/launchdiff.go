package collector

import (
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/lanetrace/lanetrace/spanring"
)

// LaunchDiff says that an execution of a region, which ended in a step, enqueued
// other operations than the execution before it.
type LaunchDiff struct {
	spanring.LaunchDiff
	// Text is the region's name, never nil.
	Text *Name
}

// MaxLaunchDiffs is how many launch diffs a step keeps.
const MaxLaunchDiffs = 16

// maxRegions is how many regions of an engine have series of their own; those that
// come later are the region other.
const maxRegions = 64

// LaunchRegion is what the executions of one region came to.
type LaunchRegion struct {
	// Region is its name, cut as a label is; "other" for those beyond what is kept
	// apart.
	Region string
	// Executions were compared, or the first; Differing of them differed, in
	// DifferingOps operations.
	Executions, Differing, DifferingOps uint64
	// Last is the last execution that differed, if any did.
	Last spanring.LaunchDiff
}

// regionSummary is a region with the attributes of its instruments.
type regionSummary struct {
	LaunchRegion
	attrs metric.MeasurementOption
}

// launchDiff counts one execution of a region. The caller holds mu.
func (s *summary) launchDiff(d *spanring.LaunchDiff, region string) {
	r := s.region(region)
	r.Executions++
	if n := d.Differing(); n > 0 {
		r.Differing++
		r.DifferingOps += n
		r.Last = *d
	}
}

func (s *summary) region(label string) *regionSummary {
	if r, ok := s.regions[label]; ok {
		return r
	}
	if len(s.regions) > maxRegions && label != other {
		return s.region(other)
	}
	r := &regionSummary{
		LaunchRegion: LaunchRegion{Region: label},
		attrs: metric.WithAttributeSet(attribute.NewSet(
			attribute.String(labelEngine, s.label), attribute.String(labelRegion, label))),
	}
	s.regions[label] = r
	return r
}

// LaunchRegions are the regions of which executions were recorded, by name.
func (e *Engine) LaunchRegions() []LaunchRegion {
	e.sum.mu.Lock()
	defer e.sum.mu.Unlock()
	var out []LaunchRegion
	for _, r := range e.sum.regions {
		if r.Executions > 0 {
			out = append(out, r.LaunchRegion)
		}
	}
	slices.SortFunc(out, func(a, b LaunchRegion) int { return strings.Compare(a.Region, b.Region) })
	return out
}

// launchDiff takes the entry of an execution. Every one counts for its region; one
// that differs is told on its step.
func (a *assembler) launchDiff(w *spanring.Words) {
	d, err := w.LaunchDiff()
	if err != nil {
		a.engine.sum.malformed++
		return
	}
	name := a.names.get(d.Region)
	if !a.again {
		a.engine.sum.launchDiff(&d, name.Label)
	}
	if d.Step == 0 || d.Differing() == 0 {
		return
	}
	st := a.step(d.Step)
	if st == nil {
		a.engine.sum.lateEntries++
		return
	}
	st.LaunchDiffCount++
	if len(st.LaunchDiffs) < MaxLaunchDiffs {
		st.LaunchDiffs = append(st.LaunchDiffs, LaunchDiff{LaunchDiff: d, Text: name})
	}
}
