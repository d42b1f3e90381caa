package collector

import (
	"errors"
	"io/fs"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// unseenFactor is how much longer than Rescan the directory is left alone while file
// events come: they should tell of everything.
const unseenFactor = 20

// list lists the directory, and begins to watch it if it is not watched. ok is false
// when it cannot be read, which is told once for each reason.
func (c *Collector) list() (paths []string, ok bool) {
	// Before the directory is listed: what comes in between is told.
	watching := c.rewatch()
	// Whoever made it anew must be who may.
	err := c.o.Dir.CheckReadable()
	if err == nil {
		paths, err = c.o.Dir.List()
	}
	reason := ""
	switch {
	case errors.Is(err, spanring.ErrDirMissing), errors.Is(err, fs.ErrNotExist):
		reason = "missing" // one way or the other, while it is being removed
	case err != nil:
		reason = err.Error()
	}
	switch {
	case reason == c.listFailed:
	case err != nil:
		c.o.Logger.Warn("ring directory cannot be listed", "reason", err.Error())
	default:
		c.o.Logger.Info("ring directory can be listed again")
	}
	c.listFailed = reason
	wait := c.o.Rescan
	if watching && err == nil {
		wait *= unseenFactor
	}
	c.listNext = time.Now().Add(wait)
	return paths, err == nil
}

// rewatch watches the directory if it is not watched. That it cannot be is told once;
// a directory that is missing, listing tells.
func (c *Collector) rewatch() bool {
	if c.watch != nil {
		return true
	}
	w, err := c.watchDir()
	if err == nil {
		c.watch, c.watchFails = w, false
		return true
	}
	if !c.watchFails && !errors.Is(err, spanring.ErrDirMissing) {
		c.watchFails = true
		c.o.Logger.Warn("no file events: the ring directory is looked at again and again", "every", c.o.Rescan.String(), "reason", err.Error())
	}
	return false
}

// due reports whether the directory is to be looked at without an event. It lets go of
// a watch that no longer watches the directory of that name.
func (c *Collector) due() bool {
	if c.watch != nil && !c.watch.Current(c.o.Dir) {
		c.lostWatch()
		return true
	}
	return !time.Now().Before(c.listNext)
}

// events are the watch's; of none, nothing ever comes.
func (c *Collector) events() <-chan struct{} {
	if c.watch == nil {
		return nil
	}
	return c.watch.Changed()
}

// lostWatch lets go of the watch: the directory is gone, or another one.
func (c *Collector) lostWatch() {
	if err := c.unwatch(); err != nil {
		c.o.Logger.Warn("file events not closed cleanly", "reason", err.Error())
	}
}

func (c *Collector) unwatch() error {
	if c.watch == nil {
		return nil
	}
	err := c.watch.Close()
	c.watch = nil
	return err
}
