// Command accuracy measures how true lanetrace's figures are on a machine with a
// GPU: docs/accuracy.md is made of what it prints.
//
// It starts itself again as an engine over the real driver binding, with a real
// hub and ring, reads that ring as the sidecar does, and holds what was published
// against two witnesses that know nothing of event pairs: CUPTI's activity records
// of the same launches (cupti/activity.c, loaded into the engine by the driver),
// and words that a kernel writes to memory which the host is watching.
//
//	engine process                               this process
//	hub ─► ring ───────────────────────────────► collector ─► spans ─┐
//	driver ─► activity.c ─► activity file ─────► records ────────────┼─► join ─► rows ─► tables, JSON
//	what it launched ─► plan file ─────────────► batches ────────────┘
//
// Each part runs twice, with and without CUPTI, so that CUPTI's own influence on
// the pairs shows. It ends with status 1 when something is wrong that can't be
// noise: launches and records that do not match, accounts that do not balance,
// spans outside their parents, a placement beyond its published uncertainty. Aims
// that are missed are printed and are no failure.
package main
