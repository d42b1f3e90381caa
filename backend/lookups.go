package backend

import "sync"

// FailedLookup is a kernel that was looked up in vain.
type FailedLookup struct {
	Module, Function string
	Times            int
}

// maxLookups bounds what Lookups remembers, one by one.
const maxLookups = 1024

// Lookups is the audit of failed look-ups; backends embed it. The zero value is
// empty.
type Lookups struct {
	mu     sync.Mutex
	failed []FailedLookup
	at     map[[2]string]int
	more   int
}

// NoteFailed takes a failure in.
func (l *Lookups) NoteFailed(module, function string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{module, function}
	if i, ok := l.at[key]; ok {
		l.failed[i].Times++
		return
	}
	if len(l.failed) == maxLookups {
		l.more++
		return
	}
	if l.at == nil {
		l.at = make(map[[2]string]int)
	}
	l.at[key] = len(l.failed)
	l.failed = append(l.failed, FailedLookup{module, function, 1})
}

// FailedLookups are the kernels that were looked up in vain, in order of the first
// time. Beyond 1,024 of them failures are only counted, in more.
func (l *Lookups) FailedLookups() (failed []FailedLookup, more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]FailedLookup(nil), l.failed...), l.more
}
