package flight

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// Reason is why a record was made.
type Reason string

// The reasons.
const (
	Died Reason = "died" // the engine went without closing its ring
	Hung Reason = "hung" // a span was in flight for too long
)

// Options say where records are kept and how many.
type Options struct {
	// Dir is where records are kept; made with mode 0700 if it is missing, the
	// directories above it too. Required.
	Dir string
	// MaxRecords is how many are kept. Default 32.
	MaxRecords int
	// MaxBytes is how much they take together; the newest is kept whatever it takes.
	// Default 256 MiB.
	MaxBytes int64
	// Writer names the program and its version in recordings.
	Writer string
	// Logger gets what cannot be removed. Default discards.
	Logger *slog.Logger
}

// Keeper makes and keeps records. Its methods may be called from any goroutine;
// one record is made at a time.
type Keeper struct {
	o  Options
	mu sync.Mutex
}

// New makes the directory and returns its keeper.
func New(o Options) (*Keeper, error) {
	if o.MaxRecords == 0 {
		o.MaxRecords = 32
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 256 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of flight records: %w", err)
	}
	return &Keeper{o: o}, nil
}

// Suffixes of a record's files.
const (
	pageSuffix = ".txt"
	tmpSuffix  = ".tmp"
)

// recordName is what a record's files are called: when, which engine, which run,
// why. Only files of that name, whole or begun, are ever removed.
var recordName = regexp.MustCompile(`^(\d{8}T\d{6}\.\d{3}Z-[A-Za-z0-9._-]{1,80}-([0-9a-f]{32})-(died|hung))(\.ltrec|\.txt)(\.tmp)?$`)

// nameTime is how the time stands in a record's name.
const nameTime = "20060102T150405.000Z"

var notInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// Keep makes a record of the ring at ringPath and returns the path of its page. If
// that run has a record of that reason already, it makes none and returns "". It
// reads the whole ring and blocks meanwhile, some tens of milliseconds.
func (k *Keeper) Keep(ringPath string, why Reason) (page string, err error) {
	return k.KeepSince(ringPath, why, time.Time{})
}

// KeepSince is Keep for what may happen to a run more than once: records that were
// made before since are another time's, and do not keep it from making one.
func (k *Keeper) KeepSince(ringPath string, why Reason, since time.Time) (page string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := spanring.Open(ringPath, spanring.ReaderOptions{})
	if err != nil {
		return "", fmt.Errorf("open the ring of a flight record: %w", err)
	}
	src := collector.NewRingSource(r)
	info, err := src.Info()
	if err != nil {
		return "", errors.Join(fmt.Errorf("read the ring of a flight record: %w", err), src.Close())
	}
	have, err := k.records()
	if err != nil {
		return "", errors.Join(err, src.Close())
	}
	if slices.ContainsFunc(have, func(x record) bool {
		return x.whole && x.run == info.RunID.String() && x.why == why && !x.madeAt().Before(since.Truncate(time.Millisecond))
	}) {
		return "", src.Close()
	}
	label := strings.Trim(notInNames.ReplaceAllString(collector.EngineName(info), "-"), "-.")
	label = label[:min(len(label), 80)]
	name := fmt.Sprintf("%s-%s-%s-%s", time.Now().UTC().Format(nameTime), cmp.Or(label, "engine"), info.RunID, why)
	base := filepath.Join(k.o.Dir, name)
	if err := k.write(src, base, why); err != nil {
		os.Remove(base + recording.Suffix + tmpSuffix)
		os.Remove(base + pageSuffix + tmpSuffix)
		return "", fmt.Errorf("write flight record %s: %w", base, err)
	}
	k.prune()
	return base + pageSuffix, nil
}

// write writes both files under temporary names and renames them once they are
// whole, the page last: a page names a recording that is there.
func (k *Keeper) write(src collector.Source, base string, why Reason) (err error) {
	w, err := recording.Create(base+recording.Suffix+tmpSuffix, recording.Options{Writer: k.o.Writer})
	if err != nil {
		return errors.Join(err, src.Close())
	}
	text, err := read(src, why, filepath.Base(base)+recording.Suffix, w)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	if err := os.WriteFile(base+pageSuffix+tmpSuffix, []byte(text), 0o600); err != nil {
		return err
	}
	return errors.Join(
		os.Rename(base+recording.Suffix+tmpSuffix, base+recording.Suffix),
		os.Rename(base+pageSuffix+tmpSuffix, base+pageSuffix),
	)
}

// record is what the directory holds of one.
type record struct {
	name  string // without suffix; sorts by time
	run   string
	why   Reason
	whole bool // its page is there, else it was only begun
	bytes int64
	files []string
}

// madeAt is when the record was begun, to the millisecond.
func (r *record) madeAt() time.Time {
	at, err := time.Parse(nameTime, r.name[:len(nameTime)])
	if err != nil {
		return time.Time{} // 99 o'clock: somebody else's
	}
	return at
}

// records are those in the directory, oldest first, what was only begun included.
func (k *Keeper) records() ([]record, error) {
	ents, err := os.ReadDir(k.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("list flight records: %w", err)
	}
	byName := make(map[string]*record)
	for _, e := range ents {
		m := recordName.FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() {
			continue
		}
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list flight records: %w", err)
		}
		r := byName[m[1]]
		if r == nil {
			r = &record{name: m[1], run: m[2], why: Reason(m[3])}
			byName[m[1]] = r
		}
		r.whole = r.whole || m[4] == pageSuffix && m[5] == ""
		r.bytes += fi.Size()
		r.files = append(r.files, filepath.Join(k.o.Dir, e.Name()))
	}
	out := make([]record, 0, len(byName))
	for _, r := range byName {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b record) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// prune removes the oldest records beyond what is kept.
func (k *Keeper) prune() {
	rs, err := k.records()
	if err != nil {
		k.o.Logger.Warn("flight records not looked through", "reason", err.Error())
		return
	}
	var total int64
	for _, r := range rs {
		total += r.bytes
	}
	for len(rs) > 1 && (len(rs) > k.o.MaxRecords || total > k.o.MaxBytes) {
		for _, f := range rs[0].files {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				k.o.Logger.Warn("flight record not removed", "file", f, "reason", err.Error())
			}
		}
		total -= rs[0].bytes
		rs = rs[1:]
	}
}
