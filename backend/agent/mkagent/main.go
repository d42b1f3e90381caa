// Command mkagent compiles the agent, liblanetrace.so, to the file it is given.
package main

import (
	"fmt"
	"os"

	"github.com/lanetrace/lanetrace/backend/agent"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "mkagent: want one argument, the file to make")
		os.Exit(2)
	}
	if err := agent.BuildTo(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
