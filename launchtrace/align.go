package launchtrace

// gap is a part of two sequences that does not match: an elements of the first
// from a on, bn of the second from b on. Between gaps elements match one to one.
type gap struct{ a, an, b, bn int32 }

// aligner finds a shortest edit script by Myers' algorithm in linear memory: the
// middle of a shortest path is searched from both ends, then both halves alike.
type aligner struct {
	fwd, rev []int32 // furthest x on each diagonal
	gaps     []gap
}

// align aligns a and b with the fewest elements inserted and removed. The result
// is good until the next call. If it takes more than limit, only the beginnings
// are aligned, with limit insertions and removals, as far as that goes: x and y are
// where. Else they are the lengths.
func (l *aligner) align(a, b []int32, limit int) (gaps []gap, x, y int) {
	l.gaps = l.gaps[:0]
	n := 2*min(limit, len(a)+len(b)) + 4
	if cap(l.fwd) < n {
		l.fwd, l.rev = make([]int32, n), make([]int32, n)
	}
	l.fwd, l.rev = l.fwd[:n], l.rev[:n]
	x, y = len(a), len(b)
	if !l.box(a, b, 0, 0, limit) {
		x, y = l.reach(a, b, limit)
		l.gaps = l.gaps[:0]
		l.box(a[:x], b[:y], 0, 0, limit)
	}
	return l.gaps, x, y
}

// box aligns a and b, which begin at a0 and b0 of the whole. It reports false, and
// does nothing of use, when that takes more than limit.
func (l *aligner) box(a, b []int32, a0, b0 int32, limit int) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b, a0, b0 = a[1:], b[1:], a0+1, b0+1
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a) == 0 || len(b) == 0 {
		l.gap(gap{a0, int32(len(a)), b0, int32(len(b))})
		return len(a)+len(b) <= limit
	}
	x0, y0, x1, y1, ok := l.middle(a, b, limit)
	if !ok {
		return false
	}
	// Both halves take at least one edit each, so they are smaller than the whole;
	// of how many both take, the whole is the bound.
	l.box(a[:x0], b[:y0], a0, b0, limit)
	l.box(a[x1:], b[y1:], a0+int32(x1), b0+int32(y1), limit)
	return true
}

func (l *aligner) gap(g gap) {
	if g.an == 0 && g.bn == 0 {
		return
	}
	if n := len(l.gaps); n > 0 {
		if p := &l.gaps[n-1]; p.a+p.an == g.a && p.b+p.bn == g.b {
			p.an += g.an
			p.bn += g.bn
			return
		}
	}
	l.gaps = append(l.gaps, g)
}

// middle is the run of matches, from (x0, y0) to (x1, y1) and possibly empty, in
// the middle of a shortest path. It is not ok when the path takes more than limit.
//
// Paths go on beyond the sequences' ends, from where none comes back: along an
// end they go one diagonal an edit, beyond it they follow two edits later, so both
// directions meet inside first.
func (l *aligner) middle(a, b []int32, limit int) (x0, y0, x1, y1 int, ok bool) {
	n, m := len(a), len(b)
	delta := n - m
	odd := delta&1 != 0
	// Diagonal k is at index k + off; the reverse one counts diagonals from the end.
	most := (min(limit, n+m) + 1) / 2
	off := most + 1
	f, r := l.fwd, l.rev
	f[off+1], r[off+1] = 0, 0
	for d := 0; d <= most; d++ {
		if 2*d-1 > limit {
			break
		}
		for k := -d + 2*max(0, d-m); k <= d-2*max(0, d-n); k += 2 {
			x := step(f, off, k, d)
			y := x - k
			sx, sy := x, y
			for x < n && y < m && a[x] == b[y] {
				x, y = x+1, y+1
			}
			f[off+k] = int32(x)
			if c := delta - k; odd && c >= -(d-1) && c <= d-1 && x+int(r[off+c]) >= n {
				return sx, sy, x, y, true
			}
		}
		if 2*d > limit {
			break
		}
		for k := -d + 2*max(0, d-m); k <= d-2*max(0, d-n); k += 2 {
			x := step(r, off, k, d)
			y := x - k
			sx, sy := x, y
			for x < n && y < m && a[n-1-x] == b[m-1-y] {
				x, y = x+1, y+1
			}
			r[off+k] = int32(x)
			if c := delta - k; !odd && c >= -d && c <= d && x+int(f[off+c]) >= n {
				return n - x, m - y, n - sx, m - sy, true
			}
		}
	}
	return 0, 0, 0, 0, false
}

// step is the x at which a path of d edits enters diagonal k.
func step(v []int32, off, k, d int) int {
	if k == -d || k != d && v[off+k-1] < v[off+k+1] {
		return int(v[off+k+1])
	}
	return int(v[off+k-1]) + 1
}

// reach is the furthest point that limit edits lead to, by x + y; of several the
// one with insertions and removals most alike in number.
func (l *aligner) reach(a, b []int32, limit int) (x, y int) {
	n, m := len(a), len(b)
	off := limit + 1
	f := l.fwd
	f[off+1] = 0
	for d := 0; d <= limit; d++ {
		for k := -d + 2*max(0, d-m); k <= d-2*max(0, d-n); k += 2 {
			px := step(f, off, k, d)
			py := px - k
			for px < n && py < m && a[px] == b[py] {
				px, py = px+1, py+1
			}
			f[off+k] = int32(px)
			if d == limit && px <= n && py <= m && (px+py > x+y || px+py == x+y && abs(px-py) < abs(x-y)) {
				x, y = px, py
			}
		}
	}
	return x, y
}

func abs(n int) int { return max(n, -n) }
