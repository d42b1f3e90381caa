package spanring

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestControl(t *testing.T) {
	w := create(t, privateDir(t), smallGeometry)
	if c, err := ReadControl(w.Path()); !errors.Is(err, ErrNoControl) || c != (Control{}) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, c := range []Control{
		{ID: "1"},
		{ID: "2", Level: "kernel", ArmSteps: math.MaxUint32},
		{ID: `quotes " and <tags> and é`, Level: "no such level"},
		{},
		{ID: strings.Repeat("x", maxControlBytes-len(`{"id":""}`)-1)},
	} {
		if err := WriteControl(w.Path(), c); err != nil {
			t.Errorf("%.40v: %v", c, err)
		}
		got, err := ReadControl(w.Path())
		if d := cmp.Diff(c, got); d != "" || err != nil {
			t.Errorf("%v\n%s", err, d)
		}
	}
	if err := WriteControl(w.Path(), Control{ID: strings.Repeat("x", maxControlBytes-len(`{"id":""}`))}); err == nil {
		t.Error("one byte over what is read was written")
	}
	if err := WriteControl(w.Path()+"x", Control{ID: "1"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such ring: %v", err)
	}
	if ents, err := os.ReadDir(filepath.Dir(w.Path())); len(ents) != 2 || err != nil {
		t.Errorf("%v, %v", ents, err)
	}
}

func TestControlRefused(t *testing.T) {
	d := privateDir(t)
	w := create(t, d, smallGeometry)
	path := w.Path() + ControlSuffix
	put := func(s string) func() error { return func() error { return os.WriteFile(path, []byte(s), 0o600) } }
	for _, c := range []struct {
		name string
		do   func() error
		want string // in the error, "" for none
	}{
		{"empty", put(""), "unexpected end"},
		{"garbage", put("\x00\xff\x1b["), "invalid character"},
		{"half", put(`{"id":"1"`), "unexpected end"},
		{"two", put(`{"id":"1"}{"id":"2"}`), "after top-level value"},
		{"list", put(`[1]`), "cannot unmarshal"},
		{"number as id", put(`{"id":1}`), "cannot unmarshal"},
		{"negative", put(`{"id":"1","arm_steps":-1}`), "cannot unmarshal"},
		{"too many", put(`{"id":"1","arm_steps":4294967296}`), "cannot unmarshal"},
		{"deep", put(strings.Repeat("[", 4000)), "unexpected end"},
		{"oversize", put(strings.Repeat(" ", maxControlBytes-9) + `{"id":"1"}`), "over 4096 bytes"},
		{"huge", func() error { return errors.Join(put("")(), os.Truncate(path, 1<<40)) }, "over 4096 bytes"},
		{"link", func() error { return os.Symlink("/etc/passwd", path) }, "too many levels of symbolic links"},
		{"directory", func() error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		{"pipe", func() error { return unix.Mkfifo(path, 0o600) }, "not a regular file"},
		{"just in size", put(strings.Repeat(" ", maxControlBytes-10) + `{"id":"1"}`), ""},
		{"what a later version may add", put(`{"id":"1","later":{"x":[1,2]}}`), ""},
	} {
		if err := errors.Join(os.RemoveAll(path), c.do()); err != nil {
			t.Fatal(err)
		}
		got, err := ReadControl(w.Path())
		if c.want == "" {
			if err != nil || got.ID != "1" {
				t.Errorf("%s: %+v, %v", c.name, got, err)
			}
			continue
		}
		if err == nil || got != (Control{}) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// TestControlReplaced reads while requests replace one another: each read is one
// of them, whole.
func TestControlReplaced(t *testing.T) {
	w := create(t, privateDir(t), smallGeometry)
	if err := WriteControl(w.Path(), Control{ID: "0"}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for i := range 100 {
				id := strings.Repeat(string(rune('a'+g)), 1+i*20)
				if err := WriteControl(w.Path(), Control{ID: id, Level: id}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 300 {
		c, err := ReadControl(w.Path())
		if err != nil || (c.ID != c.Level && c.ID != "0") {
			t.Errorf("%+v, %v", c, err)
		}
	}
	wg.Wait()
	if ents, err := os.ReadDir(filepath.Dir(w.Path())); len(ents) != 2 || err != nil {
		t.Errorf("%v, %v", ents, err)
	}
}
