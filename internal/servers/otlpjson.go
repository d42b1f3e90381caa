package servers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Attr is the value of an OTLP attribute: its type as OTLP/JSON names it, such as
// intValue, and its text.
type Attr struct{ Type, Text string }

// Int is the value of a whole attribute, 0 for any other.
func (a Attr) Int() int64 {
	n, _ := strconv.ParseInt(a.Text, 10, 64) // no number is 0
	return n
}

// Attrs are attributes by key.
type Attrs map[string]Attr

// UnmarshalJSON implements json.Unmarshaler.
func (a *Attrs) UnmarshalJSON(b []byte) error {
	var kvs []struct {
		Key   string                     `json:"key"`
		Value map[string]json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(b, &kvs); err != nil {
		return err
	}
	*a = make(Attrs, len(kvs))
	for _, kv := range kvs {
		if _, ok := (*a)[kv.Key]; ok {
			return fmt.Errorf("attribute %s is there twice", kv.Key)
		}
		v := Attr{}
		for t, raw := range kv.Value {
			v.Type = t
			if json.Unmarshal(raw, &v.Text) != nil {
				v.Text = string(raw)
			}
		}
		(*a)[kv.Key] = v
	}
	return nil
}

// number is a whole number, which OTLP/JSON writes as a string.
type number uint64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(string(bytes.Trim(b, `"`)), 10, 64)
	*n = number(v)
	return err
}

// Span is a span as OTLP carries it.
type Span struct {
	Resource    Attrs
	TraceID     string
	SpanID      string
	ParentID    string // "" of a root
	Name        string
	Kind        int
	Flags       uint32
	StartUnixNS uint64
	EndUnixNS   uint64
	Attrs       Attrs
	Events      []SpanEvent
	Links       []SpanLink
}

// SpanEvent is an event of a span.
type SpanEvent struct {
	Name   string
	UnixNS uint64
	Attrs  Attrs
}

// SpanLink is a link of a span.
type SpanLink struct {
	TraceID, SpanID string
	Flags           uint32
	Attrs           Attrs
}

// DecodeSpans decodes lines of OTLP/JSON, each a TracesData.
func DecodeSpans(lines []byte) ([]Span, error) {
	var out []Span
	err := eachLine(lines, func(line []byte) error {
		var d struct {
			ResourceSpans []struct {
				Resource   resource `json:"resource"`
				ScopeSpans []struct {
					Spans []struct {
						TraceID  string `json:"traceId"`
						SpanID   string `json:"spanId"`
						ParentID string `json:"parentSpanId"`
						Name     string `json:"name"`
						Kind     int    `json:"kind"`
						Flags    uint32 `json:"flags"`
						Start    number `json:"startTimeUnixNano"`
						End      number `json:"endTimeUnixNano"`
						Attrs    Attrs  `json:"attributes"`
						Events   []struct {
							Name  string `json:"name"`
							Time  number `json:"timeUnixNano"`
							Attrs Attrs  `json:"attributes"`
						} `json:"events"`
						Links []struct {
							TraceID string `json:"traceId"`
							SpanID  string `json:"spanId"`
							Flags   uint32 `json:"flags"`
							Attrs   Attrs  `json:"attributes"`
						} `json:"links"`
					} `json:"spans"`
				} `json:"scopeSpans"`
			} `json:"resourceSpans"`
		}
		if err := json.Unmarshal(line, &d); err != nil {
			return err
		}
		for _, rs := range d.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					sp := Span{
						Resource: rs.Resource.Attrs, TraceID: s.TraceID, SpanID: s.SpanID, ParentID: s.ParentID, Name: s.Name,
						Kind: s.Kind, Flags: s.Flags, StartUnixNS: uint64(s.Start), EndUnixNS: uint64(s.End), Attrs: s.Attrs,
					}
					for _, e := range s.Events {
						sp.Events = append(sp.Events, SpanEvent{Name: e.Name, UnixNS: uint64(e.Time), Attrs: e.Attrs})
					}
					for _, l := range s.Links {
						sp.Links = append(sp.Links, SpanLink(l))
					}
					out = append(out, sp)
				}
			}
		}
		return nil
	})
	return out, err
}

type resource struct {
	Attrs Attrs `json:"attributes"`
}

// Point is one data point of a metric as OTLP carries it.
type Point struct {
	Resource  Attrs
	Metric    string
	Unit      string
	Type      string // sum, gauge, histogram or exponentialHistogram
	Monotonic bool   // of a sum
	Attrs     Attrs

	StartUnixNS uint64
	UnixNS      uint64

	Value     float64 // of a sum or gauge
	Count     uint64  // of a histogram
	Sum       float64
	Bounds    []float64 // of a classic histogram
	Buckets   []uint64  // of a classic one, one more than bounds
	Scale     int       // of an exponential one
	Exemplars []PointExemplar
}

// PointExemplar is an exemplar of a data point.
type PointExemplar struct {
	TraceID, SpanID string
	Value           float64
}

// DecodePoints decodes lines of OTLP/JSON, each a MetricsData.
func DecodePoints(lines []byte) ([]Point, error) {
	type exemplar struct {
		TraceID string  `json:"traceId"`
		SpanID  string  `json:"spanId"`
		Double  float64 `json:"asDouble"`
		Int     string  `json:"asInt"`
	}
	type point struct {
		Attrs     Attrs      `json:"attributes"`
		Start     number     `json:"startTimeUnixNano"`
		Time      number     `json:"timeUnixNano"`
		Double    *float64   `json:"asDouble"`
		Int       *string    `json:"asInt"`
		Count     number     `json:"count"`
		Sum       float64    `json:"sum"`
		Bounds    []float64  `json:"explicitBounds"`
		Buckets   []number   `json:"bucketCounts"`
		Scale     int        `json:"scale"`
		Exemplars []exemplar `json:"exemplars"`
	}
	type data struct {
		Points    []point `json:"dataPoints"`
		Monotonic bool    `json:"isMonotonic"`
	}
	var out []Point
	err := eachLine(lines, func(line []byte) error {
		var d struct {
			ResourceMetrics []struct {
				Resource     resource `json:"resource"`
				ScopeMetrics []struct {
					Metrics []struct {
						Name        string `json:"name"`
						Unit        string `json:"unit"`
						Sum         *data  `json:"sum"`
						Gauge       *data  `json:"gauge"`
						Histogram   *data  `json:"histogram"`
						Exponential *data  `json:"exponentialHistogram"`
					} `json:"metrics"`
				} `json:"scopeMetrics"`
			} `json:"resourceMetrics"`
		}
		if err := json.Unmarshal(line, &d); err != nil {
			return err
		}
		for _, rm := range d.ResourceMetrics {
			for _, sm := range rm.ScopeMetrics {
				for _, m := range sm.Metrics {
					for t, md := range map[string]*data{"sum": m.Sum, "gauge": m.Gauge, "histogram": m.Histogram, "exponentialHistogram": m.Exponential} {
						if md == nil {
							continue
						}
						for _, p := range md.Points {
							q := Point{
								Resource: rm.Resource.Attrs, Metric: m.Name, Unit: m.Unit, Type: t, Monotonic: md.Monotonic, Attrs: p.Attrs,
								StartUnixNS: uint64(p.Start), UnixNS: uint64(p.Time), Count: uint64(p.Count), Sum: p.Sum, Bounds: p.Bounds, Scale: p.Scale,
							}
							if p.Double != nil {
								q.Value = *p.Double
							} else if p.Int != nil {
								v, err := strconv.ParseInt(*p.Int, 10, 64)
								if err != nil {
									return fmt.Errorf("metric %s: %w", m.Name, err)
								}
								q.Value = float64(v)
							}
							for _, b := range p.Buckets {
								q.Buckets = append(q.Buckets, uint64(b))
							}
							for _, e := range p.Exemplars {
								v := e.Double
								if e.Int != "" {
									v, _ = strconv.ParseFloat(e.Int, 64) // digits
								}
								q.Exemplars = append(q.Exemplars, PointExemplar{TraceID: e.TraceID, SpanID: e.SpanID, Value: v})
							}
							out = append(out, q)
						}
					}
				}
			}
		}
		return nil
	})
	return out, err
}

// eachLine calls f with every line that is not empty.
func eachLine(text []byte, f func([]byte) error) error {
	for i := 1; len(text) > 0; i++ {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		text = rest
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := f(line); err != nil {
			return fmt.Errorf("OTLP/JSON line %d: %w", i, err)
		}
	}
	return nil
}
