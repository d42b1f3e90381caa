package main

import "math"

// reference computes the model on the CPU, one token of one sequence at a time
// and with sums in float64: slow, plain, and written without a look at the
// kernels, whose numbers it is there to check.
type reference struct {
	shape   shape
	weights [][]float32 // as shape.tensors lists them
}

func newReference(s shape, seed uint32) *reference {
	r := &reference{shape: s}
	for _, t := range s.tensors(seed) {
		w := make([]float32, t.n)
		for i := range w {
			w[i] = t.value(uint32(i))
		}
		r.weights = append(r.weights, w)
	}
	return r
}

// value is element i of the tensor.
func (t *tensor) value(i uint32) float32 {
	whole := int32(mix(mix(t.seed)^i)>>8) - 1<<23
	return t.offset + t.step()*float32(whole)
}

func mix(x uint32) uint32 {
	x = (x ^ x>>16) * 0x85ebca6b
	x = (x ^ x>>13) * 0xc2b2ae35
	return x ^ x>>16
}

// refSequence is one sequence's past: keys and values of every position, by layer.
type refSequence struct {
	r            *reference
	keys, values [][][]float64
}

func (r *reference) sequence() *refSequence {
	return &refSequence{r: r, keys: make([][][]float64, r.shape.layers), values: make([][][]float64, r.shape.layers)}
}

// next takes one more token in and returns the logits of the one after it.
func (q *refSequence) next(token int32) []float64 {
	s, w := &q.r.shape, q.r.weights
	h := s.hidden
	x := make([]float64, h)
	for i := range x {
		x[i] = float64(w[0][int(token)*h+i])
	}
	for l := range s.layers {
		lw := w[3+l*layerTensors:]
		qkv := times(normed(x, lw[tNorm1]), lw[tQKV], 3*h)
		pos := len(q.keys[l])
		for head := range s.heads {
			from := head * s.headDim()
			rotate(qkv[from:from+s.headDim()], pos)
			rotate(qkv[h+from:h+from+s.headDim()], pos)
		}
		q.keys[l] = append(q.keys[l], qkv[h:2*h])
		q.values[l] = append(q.values[l], qkv[2*h:])
		add(x, times(q.attend(l, qkv[:h]), lw[tOut], h))
		gu := times(normed(x, lw[tNorm2]), lw[tGateUp], 2*s.ffn)
		for i := range s.ffn {
			gu[i] = gu[i] / (1 + math.Exp(-gu[i])) * gu[s.ffn+i]
		}
		add(x, times(gu[:s.ffn], lw[tDown], h))
	}
	return times(normed(x, w[1]), w[2], s.vocab)
}

func (q *refSequence) attend(l int, query []float64) []float64 {
	hd := q.r.shape.headDim()
	out := make([]float64, len(query))
	p := make([]float64, len(q.keys[l]))
	for from := 0; from < len(query); from += hd {
		top := math.Inf(-1)
		for j, k := range q.keys[l] {
			p[j] = 0
			for i := range hd {
				p[j] += query[from+i] * k[from+i]
			}
			p[j] /= math.Sqrt(float64(hd))
			top = max(top, p[j])
		}
		sum := 0.0
		for j := range p {
			p[j] = math.Exp(p[j] - top)
			sum += p[j]
		}
		for j, v := range q.values[l] {
			for i := range hd {
				out[from+i] += p[j] / sum * v[from+i]
			}
		}
	}
	return out
}

// times is the row x times the matrix w of n columns.
func times(x []float64, w []float32, n int) []float64 {
	y := make([]float64, n)
	for k, v := range x {
		for j, f := range w[k*n : (k+1)*n] {
			y[j] += v * float64(f)
		}
	}
	return y
}

func normed(x []float64, w []float32) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum/float64(len(x))+normEps) * float64(w[i])
	}
	return y
}

func add(x, y []float64) {
	for i := range x {
		x[i] += y[i]
	}
}

// rotate turns the pairs of a head's halves by angles that grow with pos.
func rotate(x []float64, pos int) {
	half := len(x) / 2
	for i := range half {
		sin, cos := math.Sincos(float64(pos) * math.Pow(10000, -float64(i)/float64(half)))
		a, b := x[i], x[half+i]
		x[i], x[half+i] = a*cos-b*sin, b*cos+a*sin
	}
}

// refGreedy is the first of the largest logits, and how far the next one lies
// below it.
func refGreedy(logits []float64) (token int32, margin float64) {
	best, second := math.Inf(-1), math.Inf(-1)
	for i, v := range logits {
		switch {
		case v > best:
			token, best, second = int32(i), v, best
		case v > second:
			second = v
		}
	}
	return token, best - second
}
