package collector_test

import (
	"fmt"
	"log"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/examples/recordings"
	"github.com/lanetrace/lanetrace/exporters/recording"
)

// A recording goes through the pipeline of a live ring: an observer gets every
// step, and what came of every span is in the account.
func ExampleProcessor() {
	r := recordings.H200Decode()
	f, err := recording.NewReader(r, r.Size(), recordings.H200DecodeName)
	if err != nil {
		log.Fatal(err)
	}
	src, err := f.Source(0)
	if err != nil {
		log.Fatal(err)
	}

	armed, kernels := 0, 0
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{
		Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) {
			if !s.Armed {
				return
			}
			armed++
			for _, sp := range s.Spans {
				if sp.Kind.String() == "kernel" {
					kernels++
				}
			}
		})},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // at the end of the program
	if err := p.Drain(); err != nil {
		log.Fatal(err)
	}

	a := p.Engine().Account()
	fmt.Println(p.Engine().Info().Service, a.State)
	fmt.Println("kernels are timed on armed steps:", armed > 0 && kernels > armed)
	fmt.Println("the account balances:", len(a.Unbalanced()) == 0)
	// Output:
	// decode live
	// kernels are timed on armed steps: true
	// the account balances: true
}
