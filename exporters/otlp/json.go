package otlp

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
)

// JSONOptions configure a JSONWriter.
type JSONOptions struct {
	// Version is the instrumentation scope's. Default none.
	Version string
	// HostName is the resource attribute host.name. Default os.Hostname; "-" is
	// none.
	HostName string
}

// JSONWriter writes steps as OTLP/JSON, one TracesData object a line and a line a
// step, from the same bytes that would go to a receiver. It is a
// collector.Exporter; what was written counts as exported. Its methods may be
// called from any goroutine.
type JSONWriter struct {
	o     JSONOptions
	scope []byte

	mu  sync.Mutex
	w   *bufio.Writer
	enc encoder
	buf []byte
	rs  []byte
	err error
}

// NewJSONWriter writes to w, buffered: Close flushes.
func NewJSONWriter(w io.Writer, o JSONOptions) *JSONWriter {
	switch o.HostName {
	case "":
		o.HostName, _ = os.Hostname()
	case "-":
		o.HostName = ""
	}
	return &JSONWriter{o: o, scope: appendScope(nil, o.Version), w: bufio.NewWriter(w), enc: encoder{maxBytes: 1 << 30}}
}

// Export writes one line. After an error nothing more is written; the spans are
// dropped, and Close returns the error.
func (j *JSONWriter) Export(s *collector.Step, reason collector.ExportReason) {
	j.mu.Lock()
	defer j.mu.Unlock()
	units := s.Units()
	if j.err == nil {
		j.err = j.write(s, reason)
	}
	if j.err != nil {
		s.Engine.Ledger().Drop(collector.DropRefused, units)
		return
	}
	s.Engine.Ledger().Export(units)
}

func (j *JSONWriter) write(s *collector.Step, reason collector.ExportReason) error {
	i := s.Engine.Info()
	j.enc.model = collector.CleanText(i.Model)
	j.enc.step(s, s.Engine.RunID(), reason, func() []byte { return j.buf[:0] }, func(c chunk) { j.buf = c.buf })
	return j.line(s.Engine, &i, fmt.Sprintf("step %d", s.Number))
}

// line writes the spans in buf as one line. what they are is for errors.
func (j *JSONWriter) line(e *collector.Engine, i *collector.Info, what string) error {
	j.rs = appendResource(j.rs[:0], e.Label(), j.o.HostName, i)
	m := new(tracepb.ResourceSpans)
	if err := proto.Unmarshal(appendResourceSpans(nil, j.rs, j.scope, j.buf), m); err != nil {
		return fmt.Errorf("encode %s: %w", what, err)
	}
	b, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(&tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{m}})
	if err != nil {
		return fmt.Errorf("encode %s: %w", what, err)
	}
	if b, err = hexIDs(b); err != nil {
		return fmt.Errorf("encode %s: %w", what, err)
	}
	if _, err := j.w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", what, err)
	}
	return nil
}

// Close flushes and returns the first error there was.
func (j *JSONWriter) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.w.Flush(); err != nil && j.err == nil {
		j.err = fmt.Errorf("write OTLP/JSON: %w", err)
	}
	return j.err
}

// hexIDs turns protobuf's JSON into OTLP's: ids in hexadecimal instead of base64.
// It also takes out the blanks that protojson varies.
func hexIDs(b []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if err := hexIDsIn(v); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

func hexIDsIn(v any) error {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			if err := hexIDsIn(x); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, x := range v {
			s, text := x.(string)
			if !text || (k != "traceId" && k != "spanId" && k != "parentSpanId") {
				if err := hexIDsIn(x); err != nil {
					return err
				}
				continue
			}
			id, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				return fmt.Errorf("%s %q: %w", k, s, err)
			}
			v[k] = hex.EncodeToString(id)
		}
	}
	return nil
}
