package agent

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestCalibration measures the constant where it is known, over made-up times: it is found
// where they allow it, and where they do not one line says why.
func TestCalibration(t *testing.T) {
	const enough = 4_000_000 // cycles of the first plug
	cases := []struct {
		what                     string
		constant, shallow, noise int
		outliers, bend           int
		enough                   int // of a plug's cycles
		capability               int
		failing                  string
		want                     spanring.Calibration
		wantConstant             int
		said                     string
	}{
		{what: "as an H200", constant: 3040, shallow: 720, noise: 100, want: spanring.CalibrationMeasured, wantConstant: 3040},
		{what: "no noise", constant: 3040, shallow: 720, want: spanring.CalibrationMeasured, wantConstant: 3040},
		{what: "another machine", constant: 1280, noise: 150, want: spanring.CalibrationMeasured, wantConstant: 1280},
		{what: "one pair in twenty is long", constant: 3040, shallow: 720, noise: 100, outliers: 5, want: spanring.CalibrationMeasured, wantConstant: 3040},
		{what: "longer plugs", constant: 3040, shallow: 720, enough: 8 * enough, want: spanring.CalibrationMeasured, wantConstant: 3040},
		{what: "another device", constant: 5000, shallow: 720, capability: 80, want: spanring.CalibrationAssumed, wantConstant: 5000},
		{what: "noise", constant: 3040, shallow: 720, noise: 400, want: spanring.CalibrationAssumed, wantConstant: 3040, said: "too noisy"},
		{what: "no line", constant: 3040, shallow: 720, bend: 1000, want: spanring.CalibrationAssumed, wantConstant: 3040, said: "too noisy"},
		{what: "less than nothing", constant: -200, want: spanring.CalibrationAssumed, wantConstant: 3040, said: "an impossible line"},
		{what: "no plug is enough", constant: 3040, enough: 16 * enough, want: spanring.CalibrationAssumed, wantConstant: 3040, said: "the plug ended before"},
		{what: "no spin kernel", failing: "cuModuleLoadDataEx", want: spanring.CalibrationAssumed, wantConstant: 3040, said: "refused the spin kernel"},
		{what: "no spin kernel on another device", failing: "cuModuleLoadDataEx", capability: 80, want: spanring.CalibrationNone, said: "not taken off"},
		{what: "no events", failing: "cuEventCreate", want: spanring.CalibrationAssumed, wantConstant: 3040, said: "events could not be made"},
		{what: "no launches", failing: "cuLaunchKernel", want: spanring.CalibrationAssumed, wantConstant: 3040, said: "a spin was refused"},
		{what: "no times", failing: "cuEventElapsedTime", want: spanring.CalibrationAssumed, wantConstant: 3040, said: "could not be read"},
	}
	var in, out bytes.Buffer
	for i, c := range cases {
		if c.enough == 0 {
			c.enough = enough
		}
		if c.capability == 0 {
			c.capability = 90
		}
		if c.failing == "" {
			c.failing = "-"
		}
		for seed := range 20 {
			fmt.Fprintln(&in, seed, c.constant, c.shallow, c.noise, c.outliers, c.bend, c.enough, c.capability, c.failing)
		}
		cases[i] = c
	}
	cmd := exec.Command(buildProgram(t, "calibrate.c", hubSources))
	cmd.Stdin, cmd.Stdout = &in, &out
	cmd.Stderr = &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	for _, c := range cases {
		for seed := range 20 {
			line, err := out.ReadString('\n')
			said := ""
			if strings.HasPrefix(line, "lanetrace: ") {
				said = line
				line, err = out.ReadString('\n')
			}
			if err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
			var calibration spanring.Calibration
			var constant, spread, shallow, live int
			if _, err := fmt.Sscan(line, &calibration, &constant, &spread, &shallow, &live); err != nil {
				t.Fatalf("%s: %v\n%s", c.what, err, line)
			}
			within := 20 + c.noise*3/4 // of a line through 22 times of each length
			if c.said != "" {
				within = 0
			}
			if calibration != c.want || max(constant-c.wantConstant, c.wantConstant-constant) > within {
				t.Errorf("%s, seed %d: calibration %v, %d ns; want %v, %d", c.what, seed, calibration, constant, c.want, c.wantConstant)
			}
			if live != 0 {
				t.Errorf("%s: %d events are left", c.what, live)
			}
			if (said != "") != (c.said != "") || !strings.Contains(said, c.said) {
				t.Errorf("%s: said %q, want %q", c.what, said, c.said)
			}
			if c.said != "" {
				continue
			}
			// What single pairs are off the line by, and the last ones less than it.
			if wide := 2*c.noise + 64; spread > wide || spread < c.noise {
				t.Errorf("%s, seed %d: spread %d ns", c.what, seed, spread)
			}
			if off := shallow - c.shallow; off > 60+c.noise || -off > 60+c.noise {
				t.Errorf("%s, seed %d: shallow pairs hold %d ns less, want %d", c.what, seed, shallow, c.shallow)
			}
		}
	}
}
