package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/wholefile"
)

// selectionFile is where a directory of recordings says how the sidecar that kept them
// selected, so that a replay of them does likewise.
const selectionFile = "selection.json"

// keptSelection is what stands in it.
type keptSelection struct {
	Version int `json:"version"`
	// Selections are in order of time, each until the next. There is one at least.
	Selections []selectionSince `json:"selections"`
}

// selectionSince is a selection and when it began.
type selectionSince struct {
	Since time.Time `json:"since"`
	selection
}

// selection says which steps become traces: --every and --budget.
type selection struct {
	Every     int `json:"every"`
	BudgetKiB int `json:"budget_kib"` // 0: no bound
}

func (s selection) String() string {
	text := fmt.Sprintf("one step in %d", s.Every)
	if s.BudgetKiB == 0 {
		return text + ", without a budget"
	}
	return fmt.Sprintf("%s, within %d KiB/s", text, s.BudgetKiB)
}

// live is the selection of one engine.
func (s selection) live() collector.LiveOptions {
	o := collector.LiveOptions{OneInN: s.Every, BudgetBytes: s.BudgetKiB << 10}
	if s.BudgetKiB == 0 {
		o.BudgetBytes = -1
	}
	return o
}

// keptSelectionVersion changes when a key changes its meaning or goes.
const keptSelectionVersion = 1

// Bounds of a file that somebody else may have written to.
const (
	maxKeptSelections     = 1000
	maxKeptSelectionBytes = 1 << 20
)

// readKeptSelection is the selection of the recordings in dir, nil when nobody has
// said.
func readKeptSelection(dir string) ([]selectionSince, error) {
	path := filepath.Join(dir, selectionFile)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && (!st.Mode().IsRegular() || st.Size() > maxKeptSelectionBytes) {
		return nil, fmt.Errorf("%s: not a file of a sidecar's", path)
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, bareOpen(path, err)
	}
	var k keptSelection
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if k.Version != keptSelectionVersion {
		return nil, fmt.Errorf("%s: version %d, want %d", path, k.Version, keptSelectionVersion)
	}
	if len(k.Selections) == 0 || len(k.Selections) > maxKeptSelections {
		return nil, fmt.Errorf("%s: %d selections", path, len(k.Selections))
	}
	for i, s := range k.Selections {
		if s.Every < 1 || s.BudgetKiB < 0 || s.BudgetKiB > maxBudgetKiB || i > 0 && s.Since.Before(k.Selections[i-1].Since) {
			return nil, fmt.Errorf("%s: selection %d: one step in %d within %d KiB since %s", path, i+1, s.Every, s.BudgetKiB, s.Since.Format(time.RFC3339))
		}
	}
	return k.Selections, nil
}

// noteSelection says in dir how is selected from now on. What held for longer than
// maxAge ago is forgotten, and so is what cannot be read.
func noteSelection(dir string, s selection, now time.Time, maxAge time.Duration) error {
	list, _ := readKeptSelection(dir)
	// A clock that was set back must not leave the file out of order.
	list = slices.DeleteFunc(list, func(k selectionSince) bool { return k.Since.After(now) })
	if n := len(list); n > 0 && list[n-1].selection == s {
		return nil
	}
	list = append(list, selectionSince{now.UTC(), s})
	for len(list) > maxKeptSelections || len(list) > 1 && list[1].Since.Before(now.Add(-maxAge)) {
		list = list[1:]
	}
	b, err := json.MarshalIndent(keptSelection{keptSelectionVersion, list}, "", "  ")
	if err != nil {
		return err
	}
	if err := wholefile.Replace(filepath.Join(dir, selectionFile), append(b, '\n'), 0o640); err != nil {
		return fmt.Errorf("note the selection: %w", err)
	}
	return nil
}

// replaySelectFlags say which steps a replay selects: what is not given is as the
// sidecar had it that kept the recordings, else as a sidecar has it by default.
type replaySelectFlags struct {
	Every  *positive  `help:"Send one step in so many as a trace, besides faulty, slow, armed and linked ones (default: as the sidecar that kept the recordings, else 1000)." placeholder:"N"`
	Budget *kibibytes `help:"Send at most so many KiB of traces a second of each engine, on average; 0: no bound (default: as the sidecar that kept the recordings, else 32)." placeholder:"KIB"`
}

// selections are the flags', in the place of what kept says; kept may be empty. Those
// that come to the same are one.
func (f *replaySelectFlags) selections(kept []selectionSince) (out []selectionSince) {
	if len(kept) == 0 {
		kept = []selectionSince{{selection: selection{collector.DefaultOneInN, collector.DefaultBudgetBytes >> 10}}}
	}
	for _, s := range kept {
		if f.Every != nil {
			s.Every = int(*f.Every)
		}
		if f.Budget != nil {
			s.BudgetKiB = int(*f.Budget)
		}
		if n := len(out); n == 0 || out[n-1].selection != s.selection {
			out = append(out, s)
		}
	}
	return out
}

// selectionsText says in words how is selected.
func selectionsText(list []selectionSince) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			fmt.Fprintf(&b, "; from %s on ", s.Since.Local().Format(time.DateTime))
		}
		b.WriteString(s.String())
	}
	return b.String()
}

// selectorOverTime is the selector of one engine whose sidecar changed its mind. A
// change begins anew, as the sidecar did.
type selectorOverTime struct {
	list []selectionSince // what is left, the first in force
	*collector.LiveSelector
}

func newSelectorOverTime(list []selectionSince) *selectorOverTime {
	return &selectorOverTime{list, collector.NewLiveSelector(list[0].live())}
}

// at makes what held at a time the one in force.
func (s *selectorOverTime) at(unixNS int64) {
	had := len(s.list)
	for len(s.list) > 1 && s.list[1].Since.UnixNano() <= unixNS {
		s.list = s.list[1:]
	}
	if len(s.list) < had {
		s.LiveSelector = collector.NewLiveSelector(s.list[0].live())
	}
}

// Select implements collector.Selector.
func (s *selectorOverTime) Select(x *collector.Step) (collector.ExportReason, collector.NotSelected) {
	s.at(x.UnixNS(x.ClosedMonoNS))
	return s.LiveSelector.Select(x)
}

var _ collector.RequestSelector = (*selectorOverTime)(nil)
