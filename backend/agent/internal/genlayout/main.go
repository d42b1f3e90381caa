// Command genlayout writes the ring's layout as a C header to the file it is
// given, for the agent.
package main

import (
	"fmt"
	"os"

	"github.com/lanetrace/lanetrace/spanring"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "genlayout: want one argument, the file to write")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], spanring.CHeader(), 0o644); err != nil {
		fmt.Fprintf(os.Stderr, "genlayout: %v\n", err)
		os.Exit(1)
	}
}
