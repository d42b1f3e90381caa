package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

type flags struct {
	Metrics string        `default:"http://127.0.0.1:9478/metrics" help:"What to scrape."`
	Command string        `name:"nvidia-smi" default:"nvidia-smi" help:"The program to ask."`
	Phase   string        `default:"now" help:"Printed with each line."`
	Times   int           `default:"3" help:"How often to compare."`
	Every   time.Duration `default:"1s" help:"How far apart."`

	unknown map[string]bool // fields that nvidia-smi does not know
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name("smi"), kong.Description("Compare lanetrace's readings of a GPU with nvidia-smi's."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := f.run(ctx, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "smi: %v\n", err)
		os.Exit(1)
	}
}

// run compares and prints.
func (f *flags) run(ctx context.Context, out io.Writer) error {
	if f.Times < 1 || f.Every <= 0 {
		return fmt.Errorf("compare %d times every %v: want 1 or more, and a time over 0", f.Times, f.Every)
	}
	power, err := f.watchPower(ctx)
	if err != nil {
		return err
	}
	defer power.stop()
	first, err := f.scrape(ctx)
	if err != nil {
		return err
	}
	firstAt := time.Now()
	last, lastAt := first, firstAt
	tick := time.NewTicker(f.Every)
	defer tick.Stop()
	for i := range f.Times {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
		}
		before, err := f.scrape(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		smi, err := f.ask(ctx)
		if err != nil {
			return err
		}
		took := time.Since(began)
		// What the sidecar read last lies up to an interval back.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		if last, err = f.scrape(ctx); err != nil {
			return err
		}
		lastAt = time.Now()
		for _, gpu := range smi {
			for _, c := range compare(gpu, before, last) {
				fmt.Fprintf(out, "%-8s %d  %-22s %14s %14s %14s %12s  %s\n", f.Phase, i+1, c.name, c.before, c.smi, c.after, c.difference, c.unit)
			}
		}
		fmt.Fprintf(out, "%-8s %d  nvidia-smi took %d ms\n", f.Phase, i+1, took.Milliseconds())
	}
	for uuid, samples := range power.stop() {
		id := fmt.Sprintf(`hw_id="%s"`, uuid)
		a, okA := first.value("hw_energy_joules_total", id)
		b, okB := last.value("hw_energy_joules_total", id)
		if !okA || !okB {
			continue
		}
		sum := integrate(samples, firstAt, lastAt)
		fmt.Fprintf(out, "%-8s    energy over %.2f s: counter %.1f J (%.1f W), nvidia-smi's power added up %.1f J, %+.2f %%, %d samples\n",
			f.Phase, lastAt.Sub(firstAt).Seconds(), b-a, (b-a)/lastAt.Sub(firstAt).Seconds(), sum, 100*((b-a)/sum-1), len(samples))
	}
	return nil
}

func (f *flags) scrape(ctx context.Context) (exposition, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Metrics, nil)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", f.Metrics, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", f.Metrics, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape %s: %s", f.Metrics, res.Status)
	}
	return exposition(strings.Split(string(b), "\n")), nil
}

// notField is how nvidia-smi refuses a field that it does not know.
var notField = regexp.MustCompile(`Field "([^"]+)" is not a valid field`)

// ask runs nvidia-smi once. Fields that it does not know are left out from then on.
func (f *flags) ask(ctx context.Context) ([]fields, error) {
	for {
		var names []string
		for _, r := range readings {
			if !f.unknown[r.field] {
				names = append(names, r.field)
			}
		}
		out, err := exec.CommandContext(ctx, f.Command, "--query-gpu=uuid,"+strings.Join(names, ","), "--format=csv,noheader,nounits").CombinedOutput()
		if m := notField.FindSubmatch(out); err != nil && m != nil && slices.Contains(names, string(m[1])) {
			if f.unknown == nil {
				f.unknown = make(map[string]bool)
			}
			f.unknown[string(m[1])] = true
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("run %s: %w: %s", f.Command, err, strings.TrimSpace(string(out)))
		}
		return parseFields(string(out), names)
	}
}
