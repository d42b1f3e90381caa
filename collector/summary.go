package collector

import (
	"sync"

	"github.com/lanetrace/lanetrace/spanring"
)

// summary is what an engine's steps and spans added up to, for its instruments.
type summary struct {
	mu sync.Mutex

	malformed    uint64 // entries that are no spans and cannot be
	lateEntries  uint64 // entries that are no spans, of steps closed before
	otherEntries uint64 // of kinds that steps do not consist of
}

func (s *summary) span(sp *spanring.Span, name *Name) {}
func (s *summary) steps(ready []*Step)                {}
func (s *summary) selected(r ExportReason)            {}

type engineAttrs struct{}

func (e *Engine) init() {}
