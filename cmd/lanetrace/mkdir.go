package main

import "fmt"

type mkdirCmd struct{ dirFlags }

// Run makes the ring directory, or checks the one that is there as an engine
// would. It belongs to the user who runs this: the engines' own, or root.
func (c *mkdirCmd) Run(a *app) error {
	dir, _, err := c.ringDir()
	if err != nil {
		return err
	}
	if err := dir.Make(); err != nil {
		return err
	}
	who := "its owner only: engines and sidecar run as one user"
	if dir.Group >= 0 {
		who = fmt.Sprintf("group %d: engines of this user, sidecars of any", dir.Group)
	}
	_, err = fmt.Fprintf(a.stdout, "%s is ready for %s\n", dir.Path, who)
	return err
}
