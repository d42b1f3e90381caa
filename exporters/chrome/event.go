package chrome

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// appendMicros writes ns as microseconds, exactly.
func appendMicros(b []byte, ns int64) []byte {
	u := uint64(ns)
	if ns < 0 {
		b = append(b, '-')
		u = -u
	}
	b = strconv.AppendUint(b, u/1000, 10)
	f := u % 1000
	return append(b, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
}

// appendText writes a JSON string.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			j, err := json.Marshal(s)
			if err != nil { // of a string it is never
				return append(b, `""`...)
			}
			return append(b, j...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// event begins an event: its phase, track and name.
func (w *Writer) event(phase byte, pid, tid int, name string) {
	if w.events {
		w.buf = append(w.buf, ',')
	}
	w.events = true
	w.buf = append(w.buf, "\n"+`{"ph":"`...)
	w.buf = append(w.buf, phase)
	w.buf = append(w.buf, `","pid":`...)
	w.buf = strconv.AppendInt(w.buf, int64(pid), 10)
	w.buf = append(w.buf, `,"tid":`...)
	w.buf = strconv.AppendInt(w.buf, int64(tid), 10)
	w.buf = append(w.buf, `,"name":`...)
	w.buf = appendText(w.buf, name)
}

func (w *Writer) category(cat string) {
	w.buf = append(w.buf, `,"cat":`...)
	w.buf = appendText(w.buf, cat)
}

func (w *Writer) at(p *process, monoNS int64) {
	w.buf = append(w.buf, `,"ts":`...)
	w.buf = appendMicros(w.buf, monoNS+p.offsetNS)
}

// end ends an event with its arguments, each of which wrote a comma after itself.
func (w *Writer) end(args func()) {
	if args != nil {
		w.buf = append(w.buf, `,"args":{`...)
		args()
		if n := len(w.buf) - 1; w.buf[n] == ',' {
			w.buf = w.buf[:n]
		}
		w.buf = append(w.buf, '}')
	}
	w.buf = append(w.buf, '}')
}

func (w *Writer) complete(p *process, tid int, cat, name string, startNS, endNS int64, args func()) {
	w.event('X', p.pid, tid, name)
	w.category(cat)
	w.at(p, startNS)
	w.buf = append(w.buf, `,"dur":`...)
	w.buf = appendMicros(w.buf, endNS-startNS)
	w.end(args)
}

// async writes the two events of something that overlaps its like. Its id is of no
// other.
func (w *Writer) async(p *process, tid int, cat, name string, startNS, endNS int64, args func()) {
	w.asyncs++
	for _, phase := range [...]byte{'b', 'e'} {
		w.event(phase, p.pid, tid, name)
		w.category(cat)
		w.buf = append(w.buf, `,"id2":{"local":"0x`...)
		w.buf = strconv.AppendUint(w.buf, w.asyncs, 16)
		w.buf = append(w.buf, `"}`...)
		if phase == 'b' {
			w.at(p, startNS)
			w.end(args)
		} else {
			w.at(p, endNS)
			w.end(nil)
		}
	}
}

func (w *Writer) instant(p *process, cat, name string, atNS int64, args func()) {
	w.event('i', p.pid, hostTID, name)
	w.category(cat)
	w.at(p, atNS)
	w.buf = append(w.buf, `,"s":"t"`...)
	w.end(args)
}

func (w *Writer) counter(p *process, name string, atNS int64, args func()) {
	w.event('C', p.pid, hostTID, name)
	w.at(p, atNS)
	w.end(args)
}

func (w *Writer) meta(pid, tid int, name, key, value string) {
	w.event('M', pid, tid, name)
	w.end(func() { w.text(key, value) })
}

func (w *Writer) metaInt(pid, tid int, name, key string, value int) {
	w.event('M', pid, tid, name)
	w.end(func() { w.int(key, int64(value)) })
}

func (w *Writer) key(k string) {
	w.buf = appendText(w.buf, k)
	w.buf = append(w.buf, ':')
}

func (w *Writer) text(k, v string) {
	w.key(k)
	w.buf = append(appendText(w.buf, v), ',')
}

// texts is an argument that is a list.
func (w *Writer) texts(k string, n int, text func(i int) string) {
	w.key(k)
	w.buf = append(w.buf, '[')
	for i := range n {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = appendText(w.buf, text(i))
	}
	w.buf = append(w.buf, "],"...)
}

func (w *Writer) int(k string, v int64) {
	w.key(k)
	w.buf = append(strconv.AppendInt(w.buf, v, 10), ',')
}

func (w *Writer) uint(k string, v uint64) {
	w.key(k)
	w.buf = append(strconv.AppendUint(w.buf, v, 10), ',')
}

func (w *Writer) bool(k string, v bool) {
	w.key(k)
	w.buf = append(strconv.AppendBool(w.buf, v), ',')
}
