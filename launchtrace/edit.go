package launchtrace

import (
	"errors"
	"fmt"
	"slices"
)

// EditKind is a kind of difference.
type EditKind uint8

// The kinds of difference.
const (
	EditChange  EditKind = 1 // one operation of the same kind and function, otherwise different
	EditInsert  EditKind = 2 // operations that the first does not have
	EditRemove  EditKind = 3 // operations that the second does not have
	EditReplace EditKind = 4 // a block that was not aligned: see MaxEdits
)

// String is the kind's word in reports.
func (k EditKind) String() string {
	switch k {
	case EditChange:
		return "changed"
	case EditInsert:
		return "inserted"
	case EditRemove:
		return "removed"
	case EditReplace:
		return "replaced"
	}
	return fmt.Sprintf("edit(%d)", uint8(k))
}

// Edit is one difference, complete in itself: from Before on, Removed operations of
// the first go, and Ops come in their place, which are at After in the second.
type Edit struct {
	Kind            EditKind
	Before, Removed int
	After           int
	Ops             []Op
}

// Edits are all differences, in order. Applied to the first execution they give the
// second.
func (s *Script) Edits() []Edit {
	out := make([]Edit, 0, len(s.edits))
	for _, e := range s.edits {
		x := Edit{Kind: e.kind, Before: int(e.a), Removed: int(e.an), After: int(e.b)}
		for _, r := range s.b[e.b : e.b+e.bn] {
			x.Ops = append(x.Ops, s.after.op(s.after.ref(r)))
		}
		out = append(out, x)
	}
	return out
}

// ErrEdits is wrapped by what Apply returns for edits that do not fit.
var ErrEdits = errors.New("edits do not fit")

// Apply makes the second execution of the first, whose operations are ops. What is
// no difference is taken from ops: handles of named functions and, by site,
// addresses. It fails for edits out of order or beyond ops.
func Apply(ops []Op, edits []Edit) ([]Op, error) {
	var out []Op
	at := 0
	for i, e := range edits {
		if e.Before < at || e.Removed < 0 || e.Before > len(ops) || e.Removed > len(ops)-e.Before {
			return nil, fmt.Errorf("%w: edit %d of %d operations at %d, behind %d and of %d", ErrEdits, i, e.Removed, e.Before, at, len(ops))
		}
		out = append(out, ops[at:e.Before]...)
		if e.After != len(out) {
			return nil, fmt.Errorf("%w: edit %d is at %d of the second, not at %d", ErrEdits, i, len(out), e.After)
		}
		out = append(out, e.Ops...)
		at = e.Before + e.Removed
	}
	return slices.Concat(out, ops[at:]), nil
}
