// Package recordings holds the recordings that the lanetrace binary carries, so
// that its demo needs no other file.
package recordings

import (
	_ "embed"
	"strings"
)

// H200DecodeName is the file that H200Decode reads.
const H200DecodeName = "h200-decode.ltrec"

//go:embed h200-decode.ltrec
var h200Decode string

// H200Decode reads the recording of examples/decode, the engine of the demo.
func H200Decode() *strings.Reader { return strings.NewReader(h200Decode) }
