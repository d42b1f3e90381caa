package main

import (
	"fmt"
	"math"
	"time"
)

// shape is the size of a model and of the engine around it.
type shape struct {
	name    string
	hidden  int
	heads   int
	layers  int
	ffn     int
	vocab   int
	ctx     int // positions of a sequence, prompt and output together
	slots   int // sequences served at once
	rows    int // prompt tokens of a step at most
	rate    float64
	prompt  [2]int // shortest and longest prompt, tokens
	output  [2]int // likewise the tokens generated
	logits  float64
	inverse float32 // of the sampling temperature
}

// shapes are the models to choose from. small takes 76 launches a decode step,
// reads 440 MB of weights in it, and is meant for a data-centre GPU; tiny is for
// two cores of a laptop.
var shapes = map[string]shape{
	"small": {
		name: "small", hidden: 1024, heads: 16, layers: 8, ffn: 2816, vocab: 8192, ctx: 256, slots: 16, rows: 64,
		rate: 150, prompt: [2]int{8, 96}, output: [2]int{16, 128}, logits: 2.5, inverse: 1,
	},
	"tiny": {
		name: "tiny", hidden: 64, heads: 4, layers: 4, ffn: 160, vocab: 256, ctx: 64, slots: 8, rows: 16,
		rate: 120, prompt: [2]int{4, 24}, output: [2]int{4, 32}, logits: 2.5, inverse: 1,
	},
}

// sqrt3 is the span of a uniform distribution with a variance of 1.
const sqrt3 = 1.7320508075688772

const (
	// stopToken ends a sequence when it is sampled.
	stopToken = 0
	// maxTopK is SAMPLE_MAX_K of the kernels.
	maxTopK = 16
	normEps = 1e-5
)

func (s *shape) headDim() int { return s.hidden / s.heads }

// check refuses what the kernels are not made for.
func (s *shape) check() error {
	for _, c := range []struct {
		ok   bool
		what string
	}{
		{s.hidden%s.heads == 0 && s.headDim()%2 == 0 && 128%s.headDim() == 0, "heads of an even size that divides 128"},
		{s.hidden%32 == 0 && s.ffn%32 == 0 && s.vocab%32 == 0, "hidden, ffn and vocab in multiples of 32"},
		{s.slots >= 1 && s.slots <= 256, "1 to 256 sequences at once"},
		{s.rows >= 1, "at least one prompt token a step"},
		{s.prompt[0] >= 1 && s.prompt[1]+s.output[1] <= s.ctx, "prompt and output within the context"},
	} {
		if !c.ok {
			return fmt.Errorf("model %s: want %s", s.name, c.what)
		}
	}
	return nil
}

// tensor is one array of weights: uniform in offset ± span, by its seed.
type tensor struct {
	name   string
	n      int
	seed   uint32
	span   float64
	offset float32
}

// step is the factor that fill_uniform multiplies whole numbers with.
func (t *tensor) step() float32 { return float32(t.span / (1 << 23)) }

// layerTensors are the weights of one layer, in the order of the fields that hold
// them on the device and in the reference.
const (
	tNorm1 = iota
	tQKV
	tOut
	tNorm2
	tGateUp
	tDown
	layerTensors
)

// tensors lists a model's weights: embedding, final norm, output matrix, then
// each layer's. Spans keep a row's values near 1 from layer to layer.
func (s *shape) tensors(seed uint32) []tensor {
	var out []tensor
	add := func(name string, n int, span float64, offset float32) {
		out = append(out, tensor{name: name, n: n, seed: seed + 0x9e3779b9*uint32(len(out)+1), span: span, offset: offset})
	}
	h, f := s.hidden, s.ffn
	in := func(k int) float64 { return sqrt3 / math.Sqrt(float64(k)) }
	residual := 1 / math.Sqrt(2*float64(s.layers))
	add("embedding", s.vocab*h, sqrt3, 0)
	add("norm", h, 0.1, 1)
	add("logits", h*s.vocab, in(h)*s.logits, 0)
	for l := range s.layers {
		at := func(name string) string { return fmt.Sprintf("layer %d %s", l, name) }
		add(at("norm 1"), h, 0.1, 1)
		add(at("qkv"), h*3*h, in(h), 0)
		add(at("out"), h*h, in(h)*residual, 0)
		add(at("norm 2"), h, 0.1, 1)
		add(at("gate up"), h*2*f, in(h), 0)
		// A gated value has a variance of about a third.
		add(at("down"), f*h, in(f)*residual*sqrt3, 0)
	}
	return out
}

// defaultDuration is how long requests come when nothing says otherwise.
const defaultDuration = 10 * time.Second
