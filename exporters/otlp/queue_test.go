package otlp

import (
	"testing"

	"github.com/lanetrace/lanetrace/collector"
)

// TestQueueOfSmallTraces fills the queue with traces that are much smaller than the
// buffers they are encoded into: its limit must bound the memory, too.
func TestQueueOfSmallTraces(t *testing.T) {
	const limit = 16 << 20
	for _, size := range []int{400, 1200, 5000, newBytes, 3 * newBytes} {
		q := newQueue(limit)
		eng := &engineState{engine: new(collector.Engine)}
		for range 2 * limit / size { // twice: the oldest go
			b := q.buffer()
			q.push(item{chunk: chunk{buf: append(b, make([]byte, size)...), units: 1}, eng: eng})
		}
		held := q.freeSize
		for i := range q.n {
			held += cap(q.items[(q.head+i)%len(q.items)].buf)
		}
		bytes, n := q.size()
		if bytes > limit || bytes < limit-size || n != bytes/size {
			t.Errorf("%d bytes a trace: %d bytes in %d items wait, want as many as fit into %d", size, bytes, n, limit)
		}
		if held > 2*limit {
			t.Errorf("%d bytes a trace: %d bytes wait in %d bytes of memory, want at most twice the limit", size, bytes, held)
		}
	}
}
