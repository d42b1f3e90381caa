# SPDX-License-Identifier: Apache-2.0
"""Exact marks from Python: steps, lanes and requests for an engine that runs under
lanetrace.

Copy this file into your engine; it needs nothing but the standard library, no build,
and does nothing where the agent is not loaded. Run the engine with

    lanetrace run -- python serve.py

and this file by itself, with or without lanetrace, as a check that its calls work:

    python lanetrace_marks.py
"""

import contextlib
import ctypes

EAGER, REPLAY, MIXED = 1, 2, 3  # graph modes


def _function(lib, name, result, *arguments):
    try:
        f = getattr(lib, name)
    except AttributeError:  # not loaded
        return lambda *_: 0
    f.restype = result
    f.argtypes = arguments
    return f


_lib = ctypes.CDLL(None)  # what the process has loaded; the agent is in it or not
_u32, _u64, _i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64

level = _function(_lib, "lanetrace_level", ctypes.c_int)
now = _function(_lib, "lanetrace_now", _i64)
_step_begin = _function(_lib, "lanetrace_step_begin", _u64)
_step_end = _function(_lib, "lanetrace_step_end", ctypes.c_int, _u64)
_step_attributes = _function(
    _lib, "lanetrace_step_attributes", ctypes.c_int, _u64, _u32, _u32, _u32, ctypes.c_int
)
_step_link = _function(_lib, "lanetrace_step_link", ctypes.c_int, _u64, ctypes.c_char_p)
_lane_begin = _function(
    _lib, "lanetrace_lane_begin", _u64, _u64, ctypes.c_char_p, ctypes.c_void_p
)
_lane_end = _function(_lib, "lanetrace_lane_end", ctypes.c_int, _u64)
_request_end = _function(
    _lib, "lanetrace_request_end", ctypes.c_int, ctypes.c_char_p, _i64, _i64, _u32, _u32
)


class Step:
    """One pass of the engine."""

    def __init__(self):
        self._step = _step_begin()

    def attributes(self, batch_size=0, decode_tokens=0, prefill_tokens=0, graph_mode=0):
        _step_attributes(self._step, batch_size, decode_tokens, prefill_tokens, graph_mode)

    def link(self, traceparent):
        """Ties the step to a request: the W3C traceparent that came with it."""
        if _step_link(self._step, traceparent.encode()) != 0:
            raise ValueError(f"no W3C traceparent: {traceparent!r}")

    @contextlib.contextmanager
    def lane(self, name, stream=0):
        """A part of the step on one stream, for instance
        torch.cuda.current_stream().cuda_stream."""
        lane = _lane_begin(self._step, name.encode(), stream)
        try:
            yield
        finally:
            _lane_end(lane)

    def end(self):
        _step_end(self._step)
        self._step = 0


@contextlib.contextmanager
def step():
    s = Step()
    try:
        yield s
    finally:
        s.end()


def request_end(traceparent, begin_ns, end_ns, prompt_tokens=0, output_tokens=0):
    """Says that a request is done. Times are of time.monotonic_ns()."""
    if _request_end(traceparent.encode(), begin_ns, end_ns, prompt_tokens, output_tokens) != 0:
        raise ValueError(f"no W3C traceparent: {traceparent!r}")


if __name__ == "__main__":
    import time

    request = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    begun = time.monotonic_ns()
    with step() as s:
        s.attributes(batch_size=1, prefill_tokens=128, graph_mode=EAGER)
        s.link(request)
        with s.lane("prefill"):
            pass  # the engine's launches
    request_end(request, begun, time.monotonic_ns(), prompt_tokens=128)
    print("level", level())
