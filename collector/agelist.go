package collector

// ageList holds items from the one that was added first. It allocates nothing: an
// item has its neighbours embedded, and is on one list at the most.
type ageList[T any, P aged[T]] struct{ oldest, newest P }

// neighbours are an item's on its list.
type neighbours[T any] struct{ older, newer *T }

func (n *neighbours[T]) ages() *neighbours[T] { return n }

// aged is a pointer to an item with neighbours.
type aged[T any] interface {
	*T
	ages() *neighbours[T]
}

func (l *ageList[T, P]) add(x P) {
	*x.ages() = neighbours[T]{older: l.newest}
	if l.newest != nil {
		l.newest.ages().newer = x
	} else {
		l.oldest = x
	}
	l.newest = x
}

func (l *ageList[T, P]) remove(x P) {
	n := x.ages()
	if n.older != nil {
		P(n.older).ages().newer = n.newer
	} else {
		l.oldest = n.newer
	}
	if n.newer != nil {
		P(n.newer).ages().older = n.older
	} else {
		l.newest = n.older
	}
	*n = neighbours[T]{}
}
