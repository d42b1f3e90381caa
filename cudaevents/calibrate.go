package cudaevents

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// What is known of pairs around kernels. Measured on an H200 (driver 580.159,
// CUDA 13.0) against CUPTI's times of the same launches: docs/accuracy.md.
const (
	// unknownExcessNS stands for the constant's own size where none is known.
	unknownExcessNS = 4000
	// assumedSpreadNS is about p90 - p10 of what single pairs are off the line, and
	// no less than the constant differs from process to process.
	assumedSpreadNS = 300
	// kernelFixedNS is a kernel's fixed part, which its own duration holds and the
	// calibration's line does not: its time at zero cycles by CUPTI.
	kernelFixedNS = 523
)

// knownDevices are compute capabilities of which the fixed part was measured, and
// the constant and how much less it is of shallow pairs for when they cannot be
// measured.
var knownDevices = map[int]struct{ fixedNS, constantNS, shallowNS uint32 }{
	90: {kernelFixedNS, 3040, 720},
}

// calibration is the machine's constant.
type calibration struct {
	state                spanring.Calibration
	constantNS, spreadNS uint32
	// shallowNS is how much less a pair holds that is near the end of its stream's
	// queue; see depth.
	shallowNS uint32
}

// constant measures the machine's constant, or assumes it, or does without.
func (r *Recorder) constant(own Stream) calibration {
	known, isKnown := knownDevices[r.device.Capability]
	without := calibration{}
	if isKnown {
		without = calibration{spanring.CalibrationAssumed, known.constantNS, assumedSpreadNS, known.shallowNS}
	}
	if !r.o.Calibrate {
		return without
	}
	fixed, state := uint32(kernelFixedNS), spanring.CalibrationAssumed
	if isKnown {
		fixed, state = known.fixedNS, spanring.CalibrationMeasured
	}
	var errs []error
	for try := range calibrationTries {
		line, err := r.measureLine(own, plugCycles<<try)
		if errors.Is(err, ErrNoSpin) {
			return without
		}
		if err == nil {
			err = line.check(float64(fixed))
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c := calibration{state: state, constantNS: uint32(math.Round(line.interceptNS)) - fixed, spreadNS: uint32(math.Ceil(line.spreadNS))}
		c.shallowNS = min(uint32(max(0, math.Round(line.shallowNS))), c.constantNS)
		r.log.Info("pairs calibrated", "context", r.index, "device", r.device.Name, "calibration", c.state.String(),
			"constant_ns", c.constantNS, "spread_ns", c.spreadNS, "shallow_ns", c.shallowNS)
		return c
	}
	r.log.Warn("pairs could not be calibrated", "context", r.index, "device", r.device.Name,
		"calibration", without.state.String(), "constant_ns", without.constantNS, "error", errors.Join(errs...))
	return without
}

const (
	calibrationTries  = 4
	calibrationRounds = 32 // of every length, with warmRounds and lastRounds discarded
	warmRounds        = 4
	// The last pairs of the queue, behind which nothing more comes, measure less than
	// all before them: the constant is that of the pairs before, and the last two
	// rounds, which are shallow, say by how much.
	lastRounds    = 6
	shallowRounds = deepBehind / len(spinCycles)
	// plugCycles is how long the plug spins at first, about 2 ms: longer than it
	// takes to enqueue all pairs behind it. Each try doubles it.
	plugCycles      = 4_000_000
	calibrationWait = 200 * time.Millisecond
	calibrationPoll = 100 * time.Microsecond
	// p90 - p10 of one length was 220 to 300 ns on an idle H200.
	maxSpreadNS      = 500
	maxLineErrorNS   = 100
	maxConstantNS    = math.MaxUint16 // what a span can carry
	calibrationPairs = calibrationRounds * len(spinCycles)
)

var spinCycles = [...]uint64{1000, 2000, 5000, 10000}

// spinLine is the straight line through the pairs around spin kernels.
type spinLine struct {
	interceptNS, slopeNS float64
	worstNS              float64 // of the medians, off the line
	spreadNS             float64 // p90 - p10 of what single pairs are off the line
	shallowNS            float64 // how much the last pairs lie under the line, their median
}

func (l *spinLine) check(fixedNS float64) error {
	switch {
	case l.spreadNS > maxSpreadNS || l.worstNS > maxLineErrorNS:
		return fmt.Errorf("too noisy: spread %.0f ns, medians up to %.0f ns off the line", l.spreadNS, l.worstNS)
	case !(l.slopeNS > 0) || l.interceptNS < fixedNS || l.interceptNS-fixedNS > maxConstantNS:
		return fmt.Errorf("impossible line: %.0f ns + %.4f ns a cycle", l.interceptNS, l.slopeNS)
	}
	return nil
}

// measureLine runs pairs around spin kernels behind a plug on our own stream.
func (r *Recorder) measureLine(own Stream, plug uint64) (line spinLine, err error) {
	if r.drv.Capturing() {
		return line, ErrCapturing
	}
	events := make([]Event, 2*calibrationPairs)
	calls := len(events)
	defer func() { r.count(calls) }()
	if err := r.drv.CreateEvents(events); err != nil {
		return line, fmt.Errorf("create %d events: %w", len(events), err)
	}
	defer func() {
		calls += len(events)
		if derr := r.drv.DestroyEvents(events); derr != nil {
			r.log.Warn("calibration's events could not be destroyed", "context", r.index, "error", derr)
		}
	}()
	pairs := make([]Pair, calibrationPairs)
	for i := range pairs {
		pairs[i] = Pair{events[2*i], events[2*i+1]}
	}
	calls++
	if err := r.drv.Spin(own, plug); err != nil {
		return line, fmt.Errorf("enqueue the plug: %w", err)
	}
	for i, p := range pairs {
		calls += 3
		if err := r.drv.SpinPair(own, spinCycles[i%len(spinCycles)], p); err != nil {
			return line, fmt.Errorf("enqueue spin %d: %w", i, err)
		}
	}
	calls++
	plugged := r.drv.Pending(pairs[0].Start) == NotReady
	if err := r.await(pairs[len(pairs)-1].End, &calls); err != nil {
		return line, err
	}
	if !plugged {
		return line, errors.New("the plug ended before all spins were enqueued")
	}
	times := make([]Times, len(pairs))
	n, res, c := r.drv.Elapsed(0, pairs, times)
	calls += c
	if n != len(pairs) {
		return line, fmt.Errorf("read pair %d: %w", n, res)
	}
	return fitSpins(times), nil
}

// await polls for an event, calibrationWait at most.
func (r *Recorder) await(e Event, calls *int) error {
	end := time.Now().Add(calibrationWait)
	for {
		*calls++
		switch res := r.drv.Pending(e); res {
		case Success:
			return nil
		case NotReady:
		default:
			return fmt.Errorf("wait for the spins: %w", res)
		}
		if !time.Now().Before(end) {
			return fmt.Errorf("the spins did not end within %v", calibrationWait)
		}
		time.Sleep(calibrationPoll)
	}
}

// fitSpins puts the least-squares line through the medians of the lengths.
func fitSpins(times []Times) (l spinLine) {
	const k = len(spinCycles)
	last := times[len(times)-shallowRounds*k:]
	times = times[warmRounds*k : len(times)-lastRounds*k]
	var x, y [k]float64
	buf := make([]float64, 0, len(times))
	for j := range k {
		buf = buf[:0]
		for i := j; i < len(times); i += k {
			buf = append(buf, float64(times[i].DurationMS)*1e6)
		}
		slices.Sort(buf)
		x[j], y[j] = float64(spinCycles[j]), quantile(buf, 0.5)
	}
	var mx, my, sxx, sxy float64
	for j := range k {
		mx += x[j] / float64(k)
		my += y[j] / float64(k)
	}
	for j := range k {
		sxx += (x[j] - mx) * (x[j] - mx)
		sxy += (x[j] - mx) * (y[j] - my)
	}
	l.slopeNS = sxy / sxx
	l.interceptNS = my - l.slopeNS*mx
	for j := range k {
		l.worstNS = max(l.worstNS, math.Abs(y[j]-l.interceptNS-l.slopeNS*x[j]))
	}
	buf = buf[:0]
	for i := range times {
		buf = append(buf, float64(times[i].DurationMS)*1e6-l.interceptNS-l.slopeNS*x[i%k])
	}
	slices.Sort(buf)
	l.spreadNS = quantile(buf, 0.9) - quantile(buf, 0.1)
	buf = buf[:0]
	for i := range last {
		buf = append(buf, l.interceptNS+l.slopeNS*x[i%k]-float64(last[i].DurationMS)*1e6)
	}
	slices.Sort(buf)
	l.shallowNS = quantile(buf, 0.5)
	return l
}

// quantile interpolates in sorted values, of which there is at least one.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
