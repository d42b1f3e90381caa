//go:build cgo

package cuda

import (
	"fmt"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/launchtrace"
	"github.com/lanetrace/lanetrace/spanring"
)

const kindKernel = spanring.KindKernel

// untyped makes arguments of parameters by address: copies where their sizes are
// known, with the words that the launch trace takes, else their addresses, which
// the caller has to pin.
func (k *kernel) untyped(l *backend.Launch, params []backend.Param) (args arguments, words []uint64, err error) {
	refuse := func(format string, a ...any) (arguments, []uint64, error) {
		return arguments{}, nil, &Error{Op: "launch " + k.name, Result: ErrInvalidValue, Detail: fmt.Sprintf(format, a...)}
	}
	if len(l.Args) > 0 {
		return refuse("%d typed arguments of an untyped launch", len(l.Args))
	}
	if len(params) > backend.MaxArgs {
		return refuse("%d parameters, at most %d", len(params), backend.MaxArgs)
	}
	for i, p := range params {
		if p == nil {
			return refuse("parameter %d has no address", i)
		}
	}
	if k.params == nil {
		return arguments{addrs: addresses(params)}, nil, nil
	}
	if len(k.params) != len(params) {
		return refuse("%d parameters, it has %d", len(params), len(k.params))
	}
	args.flat = new(flatArgs)
	used := 0
	for i, p := range params {
		size := int(k.params[i])
		ok := false
		if used, ok = putFlat(args.flat, i, p, size, used); !ok {
			return refuse("its parameters take more than %d bytes", len(args.flat.bytes))
		}
		words = append(words, launchtrace.Word(backend.ParamBytes(p, size)))
	}
	return args, words, nil
}

func paramDetail(i int) string {
	return fmt.Sprintf("parameter %d is not Go memory, and this driver does not know its size", i)
}
