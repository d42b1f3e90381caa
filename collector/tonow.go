package collector

// PollToNow calls poll, which polls src, until it has read what src had published at
// the first of these polls: an engine that lives writes on, maybe faster than it is
// read. One that is gone is read to its end.
func PollToNow(src Source, poll func() (n int, done bool, err error)) error {
	var published uint64
	for first := true; ; first = false {
		n, done, err := poll()
		if done || err != nil || n == 0 {
			return err
		}
		a := src.Account()
		if first {
			published = a.Published
		}
		if a.Received+a.Lost+a.Missed < published {
			continue
		}
		if alive, err := src.Alive(); err != nil || alive {
			return err
		}
	}
}

// DrainToNow polls as PollToNow does, and finishes: what steps are open then are
// closed, as incomplete.
func (p *Processor) DrainToNow() error {
	err := PollToNow(p.src, p.Poll)
	p.Finish()
	return err
}
