// Command grafana makes the Grafana dashboards of this folder: one JSON file for each
// board, in the classic model, which every Grafana imports. It writes them into the
// folder it runs in, the same bytes each time.
package main

//go:generate go run .

import (
	"fmt"
	"os"
)

func main() {
	for _, b := range boards() {
		text, err := b.json()
		if err == nil {
			err = os.WriteFile(b.file(), text, 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "make dashboard %s: %v\n", b.name, err)
			os.Exit(1)
		}
	}
}
