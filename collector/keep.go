package collector

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// KeepStats are what RegisterKeep shows of recordings that are kept on disk.
type KeepStats struct {
	// Entries are counted by what came of them, in the order of KeepReasons.
	Entries [2]uint64
	// Bytes is what is on disk, Limit where the oldest go; both 0 when none are kept.
	Bytes, Limit uint64
}

// KeepReasons are the values of the label reason of entries that were to be kept.
var KeepReasons = [...]string{"written", "lost"}

// RegisterKeep makes the instruments of kept recordings on m; stats is called at
// each collection.
func RegisterKeep(m metric.Meter, stats func() KeepStats) error {
	r, err := makeObservables(m, []*Metric{mKeepEntries, mKeepSize, mKeepLimit})
	if err != nil {
		return err
	}
	var reasons [len(KeepReasons)]metric.MeasurementOption
	for i, t := range KeepReasons {
		reasons[i] = metric.WithAttributeSet(attribute.NewSet(attribute.String(labelReason, t)))
	}
	_, err = m.RegisterCallback(func(_ context.Context, ob metric.Observer) error {
		o, s := observation{ob, r}, stats()
		for i, n := range s.Entries {
			o.n(mKeepEntries, n, reasons[i])
		}
		o.n(mKeepSize, s.Bytes)
		o.n(mKeepLimit, s.Limit)
		return nil
	}, r.all...)
	if err != nil {
		return fmt.Errorf("register instruments of kept recordings: %w", err)
	}
	return nil
}
