package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHistogram(t *testing.T) {
	var h histogram
	if h.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	for ns := int64(1); ns <= 100_000; ns++ {
		h.add(ns)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50_000, 0.99: 99_000, 0.999: 99_900, 1: 100_000} {
		if got := float64(h.quantile(q)); got > want || got < want*0.96 {
			t.Errorf("quantile %v: %v, want %v less at most 4 %%", q, got, want)
		}
	}
	h = histogram{}
	h.add(-5)
	h.add(1 << 62)
	if h.quantile(0) != 0 || h.quantile(1) != int64(histScale.Floor(histBuckets-1)) {
		t.Errorf("%d, %d", h.quantile(0), h.quantile(1))
	}
}

// Every kind comes once in each turn, and the same seed deals the same.
func TestDeck(t *testing.T) {
	deal := func(seed uint64) (es []event) {
		d := deck{rnd: rand.New(rand.NewPCG(seed, 0))}
		for range 3 * numEvents {
			es = append(es, d.next())
		}
		return es
	}
	es := deal(7)
	for turn := range 3 {
		seen := map[event]bool{}
		for _, e := range es[turn*int(numEvents) : (turn+1)*int(numEvents)] {
			seen[e] = true
		}
		if len(seen) != int(numEvents) {
			t.Errorf("turn %d: %v", turn, es)
		}
	}
	if d := cmp.Diff(es, deal(7)); d != "" {
		t.Error(d)
	}
	if cmp.Equal(es, deal(8)) {
		t.Error("two seeds deal the same")
	}
}

func TestSum(t *testing.T) {
	const text = "a{x=\"1\",y=\"2\"} 3\na{x=\"2\"} 4\nab 5\nb 6\nc x\n"
	for _, c := range []struct {
		name  string
		parts []string
		want  float64
		fails bool
	}{
		{"a", nil, 7, false}, {"a", []string{`y="2"`}, 3, false}, {"ab", nil, 5, false}, {"b", nil, 6, false},
		{"a", []string{`z=`}, 0, true}, {"c", nil, 0, true}, {"none", nil, 0, true},
	} {
		got, err := sum(text, c.name, c.parts...)
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("%s %v: %v, %v", c.name, c.parts, got, err)
		}
	}
}

// left is an engine that ended well: 10 steps of 9 lanes, all read.
func left() (final, collector.Account) {
	f := final{run: "00112233445566778899aabbccddeeff", service: "soak0", published: 120}
	c := &f.counters
	c[spanring.CtrBegun], c[spanring.CtrLanded], c[spanring.CtrStepsBegun], c[spanring.CtrStepsEnded] = 100, 100, 10, 10
	a := collector.NewAccount(c, spanring.Account{Published: 120, Received: 120}, collector.SidecarCounts{Received: 100, Exported: 100})
	return f, a
}

// Each thing that cannot be is found, and nothing else.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*final, *collector.Account)
		want string // a part of the only complaint, "" for none
	}{
		{"all is well", func(*final, *collector.Account) {}, ""},
		{"in flight at the end", func(f *final, a *collector.Account) {
			f.counters[spanring.CtrLanded]--
			f.busy, a.Sidecar.Received, a.Producer.Landed, a.Producer.InFlight, a.Sidecar.Exported = 1, 99, 99, 1, 99
		}, "ended with 1 in flight, 1 pairs, 0 steps"},
		{"reader's line", func(_ *final, a *collector.Account) { a.Reader.Received-- }, "line of the reader"},
		{"sidecar's line", func(_ *final, a *collector.Account) { a.Sidecar.Exported-- }, "line of the sidecar"},
		{"producer's line", func(_ *final, a *collector.Account) { a.Producer.Dropped++ }, "line of the producer"},
		{"not read to its end", func(f *final, _ *collector.Account) { f.published++ }, "published 121, the account says 120"},
		{"other counters", func(f *final, _ *collector.Account) {
			f.counters[spanring.CtrBegun]++
			f.counters[spanring.CtrDropped]++
		}, "begun 101 and landed 100, the account says 100 and 100"},
		{"span not received", func(_ *final, a *collector.Account) { a.Sidecar.Received, a.Sidecar.Exported = 99, 99 }, "received 99, landed 100"},
		{"span lost with its entry", func(_ *final, a *collector.Account) {
			a.Reader.Received, a.Reader.Lost, a.Sidecar.Received, a.Sidecar.Exported = 119, 1, 99, 99
			a.Reader.LostBy["hole"] = 1
		}, ""},
		{"killed with two in flight", func(f *final, a *collector.Account) {
			f.killed, f.busy = true, 1
			f.counters[spanring.CtrBegun], f.counters[spanring.CtrStepsBegun] = 102, 11
			a.Producer.Begun, a.Producer.InFlight = 102, 2
			a.Sidecar.Received, a.Sidecar.Exported = 101, 101
		}, ""},
		{"killed with more in flight than there is", func(f *final, a *collector.Account) {
			f.killed = true
			f.counters[spanring.CtrBegun] += atKill + 1
			a.Producer.Begun += atKill + 1
			a.Producer.InFlight += atKill + 1
		}, "65 in flight by the counters, 0 pairs and 0 steps are"},
		{"killed and spans missing", func(f *final, a *collector.Account) {
			f.killed = true
			a.Sidecar.Received, a.Sidecar.Exported = 100-atKill-1, 100-atKill-1
		}, "killed, received 35, landed 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var y tally
			f, a := left()
			c.do(&f, &a)
			y.check(&f, &a)
			switch {
			case c.want == "" && len(y.wrong) > 0:
				t.Errorf("complains: %v", y.wrong)
			case c.want != "" && (len(y.wrong) != 1 || !strings.Contains(y.wrong[0], c.want)):
				t.Errorf("want %q, got %v", c.want, y.wrong)
			}
		})
	}
	// A run that no sidecar saw to its end is counted as such.
	var y tally
	f, _ := left()
	y.check(&f, nil)
	if y.runs != 1 || y.compared != 0 || len(y.wrong) > 0 {
		t.Errorf("%+v", y)
	}
}

func TestLatencies(t *testing.T) {
	var noisy, same, slow, twice times
	for i := range int64(5) {
		noisy.add(window{P50NS: 1000 + 10*i, P99NS: 2000 + 100*i, P999NS: 9000})
		same.add(window{P50NS: 1020 + 10*i, P99NS: 2100 + 100*i, P999NS: 9000})
		slow.add(window{P50NS: 1500 + 10*i, P99NS: 2000 + 100*i, P999NS: 9000 + 9000/16 + 1})
		twice.add(window{P50NS: 2041, P99NS: 9000, P999NS: 90_000})
	}
	for _, c := range []struct {
		name   string
		rounds int
		with   *times
		want   [3]bool
	}{
		{"same", judgedRounds, &same, [3]bool{true, true, true}},
		{"slow", judgedRounds, &slow, [3]bool{false, true, false}},
		{"same, few rounds", judgedRounds - 1, &same, [3]bool{true, true, true}},
		{"slow, few rounds", judgedRounds - 1, &slow, [3]bool{true, true, true}},
		{"twice, few rounds", judgedRounds - 1, &twice, [3]bool{false, true, true}},
	} {
		var rs results
		latencies(&rs, c.rounds, &noisy, c.with)
		if got := [3]bool{rs[0].ok, rs[1].ok, rs[2].ok}; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if want := "1.02 µs [1.00 µs to 1.04 µs] without, 1.04 µs [1.02 µs to 1.06 µs] with a sidecar"; c.with == &same && rs[0].got != want {
			t.Errorf("%s: %q, want %q", c.name, rs[0].got, want)
		}
	}
}

// life is a sidecar that is looked at every half second, with so many MiB at each age.
func life(length time.Duration, mib func(age time.Duration) float64) (l []held) {
	for age := time.Duration(0); age <= length; age += 500 * time.Millisecond {
		l = append(l, held{age, int(mib(age) * 1024)})
	}
	return l
}

func TestMemory(t *testing.T) {
	// As sidecars do: 6 MiB at the start, 20 two seconds later, then 20 to 26.
	usual := func(age time.Duration) float64 {
		return min(6+7*age.Seconds(), 20+float64(int(age.Seconds())%4)*2)
	}
	steady, short := life(2*time.Minute, usual), life(6*time.Second, usual)
	for _, c := range []struct {
		name  string
		lives [][]held
		want  [2]bool
		got   string // of the second line
	}{
		{"steady", [][]held{short, steady}, [2]bool{true, true}, "24.0 MiB in the first third of 1m50s, 24.0 MiB in the last"},
		{"killed soon, and another short one", [][]held{nil, short, short}, [2]bool{true, true}, "none was watched for longer than 6s"},
		{"grows", [][]held{life(2*time.Minute, func(age time.Duration) float64 { return 15 + age.Seconds()/6 })}, [2]bool{true, false}, ""},
		{"grows in the one that lived longest", [][]held{life(2*time.Minute, func(age time.Duration) float64 { return 15 + age.Seconds()/6 }), life(time.Minute, usual)}, [2]bool{true, false}, ""},
		{"not seen in its first third", [][]held{slices.DeleteFunc(slices.Clone(steady), func(h held) bool { return h.age < time.Minute })}, [2]bool{true, false}, ""},
		{"large once", [][]held{life(time.Minute, func(age time.Duration) float64 { return usual(age) + 21*one(age == 30*time.Second) })}, [2]bool{true, true}, ""},
		{"too large once, in one that was killed", [][]held{life(9*time.Second, func(age time.Duration) float64 { return usual(age) + 30*one(age == 8*time.Second) }), steady}, [2]bool{false, true}, ""},
		{"large all the time", [][]held{life(time.Minute, func(time.Duration) float64 { return 41 })}, [2]bool{false, true}, ""},
		{"never looked at", [][]held{nil}, [2]bool{false, true}, ""},
	} {
		var rs results
		memory(&rs, c.lives)
		if got := [2]bool{rs[0].ok, rs[1].ok}; got != c.want {
			t.Errorf("%s: %v, want %v: %+v", c.name, got, c.want, rs)
		}
		if c.got != "" && rs[1].got != c.got {
			t.Errorf("%s: %q, want %q", c.name, rs[1].got, c.got)
		}
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func TestFlat(t *testing.T) {
	r := resources{goroutines: 20, fds: 15}
	for _, c := range []struct {
		name string
		last resources
		want [2]bool
	}{
		{"as at first", r, [2]bool{true, true}},
		{"as many as may be", resources{20 + routineGrowth, 15 + fdGrowth}, [2]bool{true, true}},
		{"leaks", resources{20 + routineGrowth + 1, 15 + fdGrowth + 1}, [2]bool{false, false}},
	} {
		var rs results
		flat(&rs, r, c.last)
		if got := [2]bool{rs[0].ok, rs[1].ok}; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestResults(t *testing.T) {
	var rs results
	rs.add(true, "this", "1", "%d", 1)
	if !rs.ok() {
		t.Error("not ok")
	}
	rs.add(false, "that", "2", "%d", 3)
	var out bytes.Buffer
	if err := rs.print(&out); err != nil || rs.ok() {
		t.Errorf("%v, ok %v", err, rs.ok())
	}
	want := "        WHAT  WANTED  FOUND\nok      this  1       1\nFAILED  that  2       3\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}

// A full disk takes nothing more, and then it does.
func TestDisk(t *testing.T) {
	d, err := newDisk(filepath.Join(t.TempDir(), "keep"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	if !d.mounted {
		t.Skip("mounting is not permitted here, and root writes wherever it likes")
	}
	name := filepath.Join(d.path, "x")
	for range 2 {
		_ = os.Remove(name) // from the time before
		if err := d.fill(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, make([]byte, 8192), 0o600); err == nil {
			t.Error("a full disk takes 8 KiB")
		}
		if err := d.empty(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, make([]byte, 8192), 0o600); err != nil {
			t.Errorf("an empty disk takes nothing: %v", err)
		}
	}
}

func TestProc(t *testing.T) {
	n, err := countFDs(os.Getpid())
	if err != nil || n < 3 {
		t.Errorf("%d, %v", n, err)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if m, err := countFDs(os.Getpid()); err != nil || m != n+1 {
		t.Errorf("%d after one was opened, %d before, %v", m, n, err)
	}
	if kib, err := rssAnonKiB(os.Getpid()); err != nil || kib < 100 {
		t.Errorf("%d, %v", kib, err)
	}
	if _, err := rssAnonKiB(1 << 30); err == nil {
		t.Error("memory of no process")
	}
}
