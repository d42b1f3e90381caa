package ledger

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const second = int64(time.Second)

// watch observes one site every second from fromS on, holding what bytes says.
func watch(g *Growth, fromS, toS int64, bytes func(s int64) int64) {
	for s := fromS; s < toS; s++ {
		g.Observe(s*second, []SiteTotal{{Site: "a.go:1", Bytes: bytes(s)}})
	}
}

func TestGrowth(t *testing.T) {
	o := GrowthOptions{WarmUp: 60 * time.Second, Window: 100 * time.Second, LeastBytes: 1000}
	const k = 1000
	for _, c := range []struct {
		name  string
		bytes func(s int64) int64
		want  []Suspect
	}{
		{"nothing", func(int64) int64 { return 5 * k }, nil},
		{"a steady leak", func(s int64) int64 { return s * k }, []Suspect{{Site: "a.go:1", Bytes: 399 * k, Grown: 100 * k, Over: 100 * time.Second, BytesPerSecond: k}}},
		{"a leak in steps", func(s int64) int64 { return s / 20 * 20 * k }, []Suspect{{Site: "a.go:1", Bytes: 380 * k, Grown: 100 * k, Over: 100 * time.Second, BytesPerSecond: k}}},
		{"too little", func(s int64) int64 { return s * 9 }, nil},
		{"one large step", func(s int64) int64 { return (1 + s/250) * 1000 * k }, nil},
		{"steps too rare", func(s int64) int64 { return s / 60 * 60 * k }, nil},
		{"growth that has ended", func(s int64) int64 { return min(s, 300) * k }, nil},
		{"growth only while warming up", func(s int64) int64 { return min(s, 60) * k }, nil},
		{"a fall now and then", func(s int64) int64 {
			if s%90 == 89 {
				return 0
			}
			return s * k
		}, nil},
		{"a leak after a fall", func(s int64) int64 {
			if s < 280 {
				return 1000*k - s
			}
			return s * k
		}, []Suspect{{Site: "a.go:1", Bytes: 399 * k, Grown: 100 * k, Over: 100 * time.Second, BytesPerSecond: k}}},
	} {
		g := NewGrowth(o)
		watch(g, 0, 400, c.bytes)
		if d := cmp.Diff(c.want, g.Suspects()); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// TestGrowthWhen: a leak is suspected a window after the warm-up and no sooner,
// and no longer once the site has fallen.
func TestGrowthWhen(t *testing.T) {
	g := NewGrowth(GrowthOptions{WarmUp: 60 * time.Second, Window: 100 * time.Second, LeastBytes: 1})
	first := int64(-1)
	for s := int64(0); s < 300; s++ {
		watch(g, s, s+1, func(s int64) int64 { return 100 + s })
		if len(g.Suspects()) > 0 && first < 0 {
			first = s
		}
	}
	if first != 160 {
		t.Errorf("suspected after %d s", first)
	}
	watch(g, 300, 301, func(int64) int64 { return 50 })
	if s := g.Suspects(); s != nil {
		t.Errorf("after a fall: %+v", s)
	}
	watch(g, 301, 450, func(s int64) int64 { return s })
	if s := g.Suspects(); len(s) != 1 {
		t.Errorf("again: %+v", s)
	}
	g.Observe(450*second, nil)
	watch(g, 451, 452, func(s int64) int64 { return s })
	if s := g.Suspects(); s != nil || len(g.sites) != 1 {
		t.Errorf("it held nothing: %+v, %d watched", s, len(g.sites))
	}
}

// TestGrowthOdd: times that stand still or go back, and gaps.
func TestGrowthOdd(t *testing.T) {
	g := NewGrowth(GrowthOptions{WarmUp: -1, Window: 100 * time.Second, LeastBytes: 1})
	for range 1000 {
		watch(g, 5, 6, func(int64) int64 { return 5 })
		watch(g, 3, 4, func(int64) int64 { return 9 })
	}
	if s := g.Suspects(); s != nil || g.sites["a.go:1"].bytes != 5 {
		t.Errorf("%+v", s)
	}
	// Seldom looked at: the rate is over the time that passed.
	for i := range int64(5) {
		watch(g, 1000*(i+1), 1000*(i+1)+1, func(s int64) int64 { return 10 * s })
	}
	if s := g.Suspects(); len(s) != 1 || s[0].Over != 4000*time.Second || s[0].BytesPerSecond != 10 {
		t.Errorf("%+v", s)
	}
	// Defaults.
	d := NewGrowth(GrowthOptions{})
	if d.warmUp != 120*second || d.window != 600*second || d.least != 1<<20 {
		t.Errorf("%+v", d)
	}
	// Fastest first, then by name.
	for i := range int64(6) {
		d.Observe(i*200*second, []SiteTotal{{Site: "slow", Bytes: i << 20}, {Site: "c", Bytes: i << 21}, {Site: "b", Bytes: i << 21}})
	}
	var names []string
	for _, s := range d.Suspects() {
		names = append(names, s.Site)
	}
	if diff := cmp.Diff([]string{"b", "c", "slow"}, names); diff != "" {
		t.Error(diff)
	}
}

// TestGrowthNeverAccusesTheFalling: whatever is observed, a suspect has not fallen
// for a window and has grown by what it is said to have.
func TestGrowthNeverAccusesTheFalling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGrowth(GrowthOptions{WarmUp: -1, Window: 20 * time.Second, LeastBytes: 10})
		type obs struct{ ns, bytes int64 }
		var all []obs
		now, bytes := int64(0), int64(1000)
		for range 120 {
			now += rapid.Int64Range(1, 3).Draw(t, "gap") * second
			bytes = max(1, bytes+rapid.SampledFrom([]int64{0, 0, 1, 5, 100, -1}).Draw(t, "change"))
			all = append(all, obs{now, bytes})
			g.Observe(now, []SiteTotal{{Site: "x", Bytes: bytes}})
			for _, s := range g.Suspects() {
				if s.Bytes != bytes || s.Over < 20*time.Second || s.Grown < 10 {
					t.Fatalf("%+v with %d bytes", s, bytes)
				}
				for i := len(all) - 1; i > 0 && all[i].ns > now-20*second; i-- {
					if all[i].bytes < all[i-1].bytes {
						t.Fatalf("%+v fell at %d of %d", s, all[i].ns, now)
					}
				}
			}
		}
	})
}
