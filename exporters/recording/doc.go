// Package recording reads and writes .ltrec files: what one or several engines
// wrote to their rings, with everything that a reader of the rings would have
// been told beside it, so that a replay goes through the same pipeline as a live
// ring and comes to the same steps.
//
// # The file
//
// A file header of 64 bytes, then blocks. All numbers are little-endian.
//
//	header: magic [8] | version u16 | reserved u16 | crc32c u32 | writer [48]
//	block:  length u32 | type u8 | flags u8 | run u16 | crc32c of payload u32 |
//	        crc32c of these 12 bytes u32 | payload [length]
//
// Runs are numbered from 1 in the order of their first block. A run's blocks are
// one Run, any number of Names, Entries, Allocations and State, and one End; those
// of several runs may be mixed. Readings blocks hold what devices reported: they belong
// to no run and may stand anywhere. A FileEnd block is the last of the file: a file without one
// was cut, or its writer did not come to the end. Blocks are only ever appended,
// each by one write, so that a crash leaves a readable file with at most one
// damaged block at its end.
//
// Payloads are compressed with zstd where that makes them smaller. A reader
// ignores what follows the fields of a payload that it knows, and skips blocks of
// a type that it does not know if they are flagged optional; it refuses others.
//
// Entries are stored by column: each field of each kind of entry as its
// difference from what the entries before it in the block let expect. A block
// depends on no other block of entries.
//
// # What is guaranteed
//
// Reader and writer hold one block of each run in memory, however long the
// recording. Every block's checksum is checked before anything of it is used.
// Files are not trusted: every length and count is bounded, and a hostile file
// costs an error.
package recording
