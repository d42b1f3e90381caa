package launchtrace

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// distance is the fewest insertions and removals, by the plain table.
func distance(a, b []int32) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diag := row[0]
		row[0] = i + 1
		for j := range b {
			next := min(row[j+1], row[j]) + 1
			if a[i] == b[j] {
				next = diag
			}
			diag, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

// checkGaps holds gaps to what an alignment is and returns its edits.
func checkGaps(t interface{ Fatalf(string, ...any) }, a, b []int32, gaps []gap, x, y int) int {
	n, i, j := 0, 0, 0
	for k, g := range append(slices.Clone(gaps), gap{a: int32(x), b: int32(y)}) {
		if g.an < 0 || g.bn < 0 || k < len(gaps) && g.an+g.bn == 0 || int(g.a) < i || int(g.b) < j || int(g.a)-i != int(g.b)-j {
			t.Fatalf("gap %d of %v does not follow (%d, %d)", k, gaps, i, j)
		}
		if k > 0 && k < len(gaps) && int(g.a) == i {
			t.Fatalf("gap %d of %v touches the one before", k, gaps)
		}
		for ; i < int(g.a); i, j = i+1, j+1 {
			if a[i] != b[j] {
				t.Fatalf("%v: %d and %d are matched and not equal", gaps, i, j)
			}
		}
		i, j = i+int(g.an), j+int(g.bn)
		n += int(g.an + g.bn)
	}
	if i != x || j != y {
		t.Fatalf("%v ends at (%d, %d), not (%d, %d)", gaps, i, j, x, y)
	}
	return n
}

func TestAlign(t *testing.T) {
	for _, c := range []struct {
		name, a, b string
		want       []gap
	}{
		{"nothing", "", "", nil},
		{"equal", "abcabba", "abcabba", nil},
		{"all inserted", "", "abc", []gap{{0, 0, 0, 3}}},
		{"all removed", "abc", "", []gap{{0, 3, 0, 0}}},
		{"nothing in common", "abc", "xy", []gap{{0, 3, 0, 2}}},
		{"one inserted", "abcd", "abxcd", []gap{{2, 0, 2, 1}}},
		{"one removed", "abxcd", "abcd", []gap{{2, 1, 2, 0}}},
		{"one for another", "abcd", "axcd", []gap{{1, 1, 1, 1}}},
		{"first and last", "xabcdx", "abcd", []gap{{0, 1, 0, 0}, {5, 1, 4, 0}}},
	} {
		var l aligner
		a, b := letters(c.a), letters(c.b)
		gaps, x, y := l.align(a, b, 100)
		if n := checkGaps(t, a, b, gaps, x, y); n != distance(a, b) || x != len(a) || y != len(b) {
			t.Errorf("%s: %d edits up to (%d, %d), want %d", c.name, n, x, y, distance(a, b))
		}
		if !slices.Equal(gaps, c.want) {
			t.Errorf("%s: %v, want %v", c.name, gaps, c.want)
		}
	}
}

func letters(s string) []int32 {
	var k []int32
	for _, r := range s {
		k = append(k, r)
	}
	return k
}

// pairs yields sequences of every sort: of few and of many different elements,
// alike and not.
func pairs(t *testing.T, each func(a, b []int32, rnd *rand.Rand)) {
	n := 5000
	if testing.Short() {
		n = 500
	}
	for seed := range n {
		rnd := rand.New(rand.NewPCG(uint64(seed), 0))
		letters := 1 + rnd.IntN(8)
		some := func(n int) []int32 {
			k := make([]int32, n)
			for i := range k {
				k[i] = int32(rnd.IntN(letters))
			}
			return k
		}
		a := some(rnd.IntN(60))
		b := some(rnd.IntN(60))
		if rnd.IntN(2) == 0 {
			b = slices.Clone(a)
			for range rnd.IntN(12) {
				i := rnd.IntN(len(b) + 1)
				if j := min(len(b), i+rnd.IntN(3)); rnd.IntN(2) == 0 {
					b = slices.Delete(b, i, j)
				} else {
					b = slices.Insert(b, i, some(1+rnd.IntN(3))...)
				}
			}
		}
		if each(a, b, rnd); t.Failed() {
			t.Fatalf("seed %d: %v and %v", seed, a, b)
		}
	}
}

// TestAlignShortest: there is no shorter alignment, whatever the sequences.
func TestAlignShortest(t *testing.T) {
	var l aligner // what is left in it must not matter
	pairs(t, func(a, b []int32, _ *rand.Rand) {
		gaps, x, y := l.align(a, b, 1000)
		if n := checkGaps(t, a, b, gaps, x, y); x != len(a) || y != len(b) || n != distance(a, b) {
			t.Errorf("%v: %d edits up to (%d, %d), want %d", gaps, n, x, y, distance(a, b))
		}
	})
}

// TestAlignLimit: what takes more than the limit is aligned as far as the limit
// goes, and what does not is not touched by it.
func TestAlignLimit(t *testing.T) {
	var l aligner
	limited := 0
	pairs(t, func(a, b []int32, rnd *rand.Rand) {
		limit := rnd.IntN(30)
		gaps, x, y := l.align(a, b, limit)
		n := checkGaps(t, a, b, gaps, x, y)
		d := distance(a, b)
		if d <= limit {
			if x != len(a) || y != len(b) || n != d {
				t.Errorf("limit %d: %d edits up to (%d, %d), want %d", limit, n, x, y, d)
			}
			return
		}
		limited++
		if n != limit || distance(a[:x], b[:y]) != limit {
			t.Errorf("limit %d: %d edits up to (%d, %d), of which %d are needed", limit, n, x, y, distance(a[:x], b[:y]))
		}
		if limited%50 != 0 {
			return
		}
		// No other beginnings that the limit is enough for go further.
		for i := range len(a) + 1 {
			for j := range len(b) + 1 {
				if i+j > x+y && distance(a[:i], b[:j]) <= limit {
					t.Errorf("limit %d: (%d, %d) is further than (%d, %d) and takes %d", limit, i, j, x, y, distance(a[:i], b[:j]))
				}
			}
		}
	})
	if limited == 0 {
		t.Error("no sequences took more than their limit")
	}
}

// TestAlignLarge compares with the table where paths are long.
func TestAlignLarge(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var l aligner
	for _, c := range []struct{ n, letters, edits int }{{3000, 40, 50}, {2000, 3, 400}, {1500, 1000, 1500}, {3000, 1, 7}, {2500, 10, 3000}} {
		a := make([]int32, c.n)
		for i := range a {
			a[i] = int32(rnd.IntN(c.letters))
		}
		b := slices.Clone(a)
		for range c.edits {
			switch i := rnd.IntN(len(b)); rnd.IntN(3) {
			case 0:
				b = slices.Insert(b, i, int32(rnd.IntN(c.letters)))
			case 1:
				b = slices.Delete(b, i, i+1)
			default:
				b[i] = int32(rnd.IntN(c.letters))
			}
		}
		gaps, x, y := l.align(a, b, MaxEdits)
		if n, want := checkGaps(t, a, b, gaps, x, y), distance(a, b); n != want || x != len(a) {
			t.Errorf("%+v: %d edits, want %d", c, n, want)
		}
	}
}
