package web

import "github.com/lanetrace/lanetrace/collector"

const (
	// memorySamples is how many looks at a run's memory are kept: ten minutes of them
	// at the default pace.
	memorySamples = 300
	// sampleSites is how many call sites of a look are kept, the largest, and pastSites
	// how many names of call sites a run's past has; the others are one.
	sampleSites = 8
	pastSites   = 64
)

// memorySample is a run's memory at one moment.
type memorySample struct {
	monoNS                      int64
	live, peak, chunk, rounding uint64
	sites                       [sampleSites]siteBytes
	numSites                    int
}

type siteBytes struct {
	site  int // in the past's names
	bytes int64
}

// memoryPast are the last looks at a run's memory.
type memoryPast struct {
	samples []memorySample // by number modulo memorySamples, once full
	next    uint64
	sites   map[string]int
	names   []string
}

// add keeps one look, if memory is tracked.
func (p *memoryPast) add(monoNS int64, m *collector.Memory) {
	if m.State != collector.MemoryPublished {
		return
	}
	t := &m.Totals
	s := memorySample{monoNS: monoNS, live: t.LiveBytes, peak: t.PeakBytes, chunk: t.ChunkSlackBytes, rounding: t.RoundingSlackBytes}
	for i := range m.Sites {
		if at, ok := p.site(m.Sites[i].Site); ok && s.numSites < sampleSites {
			s.sites[s.numSites] = siteBytes{at, m.Sites[i].Bytes}
			s.numSites++
		}
		if s.numSites == sampleSites {
			break
		}
	}
	if i := int(p.next % memorySamples); i == len(p.samples) {
		p.samples = append(p.samples, s)
	} else {
		p.samples[i] = s
	}
	p.next++
}

// site is a name's place; ok is false when there are too many.
func (p *memoryPast) site(name string) (int, bool) {
	name = collector.CutSite(collector.CleanText(name), collector.MaxLabelBytes)
	at, ok := p.sites[name]
	if ok {
		return at, true
	}
	if len(p.names) >= pastSites {
		return 0, false
	}
	if p.sites == nil {
		p.sites = make(map[string]int)
	}
	at = len(p.names)
	p.sites[name] = at
	p.names = append(p.names, name)
	return at, true
}

// memoryPoint is a look on the wire. Sites are pairs of place and bytes.
type memoryPoint struct {
	TimeNS   int64      `json:"t"`
	Live     uint64     `json:"live"`
	Peak     uint64     `json:"peak"`
	Chunk    uint64     `json:"chunk"`
	Rounding uint64     `json:"rounding"`
	Sites    [][2]int64 `json:"sites"`
}

// after are the looks from the given one on, with times since base.
func (p *memoryPast) after(from uint64, baseNS int64) (out []memoryPoint) {
	if p.next > memorySamples {
		from = max(from, p.next-memorySamples)
	}
	for ; from < p.next; from++ {
		s := &p.samples[from%memorySamples]
		m := memoryPoint{TimeNS: s.monoNS - baseNS, Live: s.live, Peak: s.peak, Chunk: s.chunk, Rounding: s.rounding, Sites: make([][2]int64, s.numSites)}
		for i := range m.Sites {
			m.Sites[i] = [2]int64{int64(s.sites[i].site), s.sites[i].bytes}
		}
		out = append(out, m)
	}
	return out
}
