package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/launchtrace"
	"github.com/lanetrace/lanetrace/spanring"
)

type versionCmd struct{}

// Run prints the version and what the binary can read and write.
func (versionCmd) Run(a *app) error {
	commit, changed, cgo := "unknown", "", "off"
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = " (with changes)"
			case s.Key == "CGO_ENABLED" && s.Value == "1":
				cgo = "on"
			}
		}
	}
	_, err := fmt.Fprintf(a.stdout, "lanetrace %s\ncommit %s%s\n%s %s/%s, cgo %s\nring layout %d, recording format %d, launch trace format %d\n",
		lanetrace.Version, commit, changed, runtime.Version(), runtime.GOOS, runtime.GOARCH, cgo, spanring.LayoutVersion, recording.Version, launchtrace.FileVersion)
	return err
}

// program names this binary in what it writes.
const program = "lanetrace " + lanetrace.Version
