#!/usr/bin/env python3
# Copyright The lanetrace Authors
# SPDX-License-Identifier: Apache-2.0
"""A Llama-shaped model of about 1.1 billion random weights, served in steps: prefill and decode, eager or by CUDA graph.

It knows nothing of lanetrace. Its steps and lanes are NVTX ranges, as vLLM's and SGLang's are:

    lanetrace run --step step --lanes 'prefill,decode,sample' -- python3 llama.py --graph --seconds 30

With --ab it measures what levels cost: the same decode step at each level in turn, in one process. It switches the level
as an operator does, by the control file beside the ring. With --ab-lane it measures what a lane costs, from one step to the
next: their ranges have names of which only one is a lane's.
"""

import argparse
import contextlib
import gc
import hashlib
import inspect
import json
import os
import random
import statistics
import struct
import sys
import time

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
except ImportError as e:
    sys.exit(f"llama.py: {e}: it needs PyTorch with CUDA, and transformers")

nvtx = torch.cuda.nvtx


@contextlib.contextmanager
def named(name):
    nvtx.range_push(name)
    try:
        yield
    finally:
        nvtx.range_pop()


class Engine:
    def __init__(self, o):
        self.o = o
        torch.manual_seed(o.seed)
        cfg = LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=o.layers,
            num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=4096,
            attn_implementation="sdpa",
        )
        with named("weights"):
            torch.set_default_dtype(torch.bfloat16)
            with torch.device("cuda"):
                self.model = LlamaForCausalLM(cfg).eval()
        self.cfg = cfg
        self.takes_position = "cache_position" in inspect.signature(self.model.model.forward).parameters
        self.length = o.prompt + o.output + 8
        with named("kv_cache"):
            self.cache = self.new_cache()
            self.forward(torch.zeros(o.batch, 1, dtype=torch.long, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda"))
        g = torch.Generator(device="cuda").manual_seed(o.seed)
        self.prompt = torch.randint(0, cfg.vocab_size, (o.batch, o.prompt), generator=g, device="cuda")
        self.token = torch.zeros(o.batch, 1, dtype=torch.long, device="cuda")
        self.position = torch.zeros(1, dtype=torch.long, device="cuda")
        self.prompt_positions = torch.arange(o.prompt, device="cuda")
        self.graph, self.logits = None, None
        if o.graph:
            self.capture()

    def new_cache(self):
        return StaticCache(config=self.cfg, max_cache_len=self.length)

    def forward(self, ids, positions):
        extra = {"cache_position": positions} if self.takes_position else {}
        with torch.no_grad():
            return self.model(ids, position_ids=positions[None], past_key_values=self.cache, use_cache=True,
                              logits_to_keep=1, **extra).logits[:, -1]

    def rewind(self, n):
        """Lets the next token go to position n of the cache."""
        self.position.fill_(n)
        for layer in self.cache.layers:
            length = getattr(layer, "cumulative_length", None)
            if torch.is_tensor(length):
                length.fill_(n)
            elif length is not None:
                layer.cumulative_length = n

    def capture(self):
        s = torch.cuda.Stream()
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            for _ in range(3):
                self.rewind(self.o.prompt)
                self.logits = self.forward(self.token, self.position)
        torch.cuda.current_stream().wait_stream(s)
        self.rewind(self.o.prompt)
        self.graph = torch.cuda.CUDAGraph()
        with named("graph_pool"), torch.cuda.graph(self.graph):
            self.logits = self.forward(self.token, self.position)
        self.rewind(self.o.prompt)

    def prefill(self):
        with named("step"):
            self.rewind(0)
            with named("prefill"):
                logits = self.forward(self.prompt, self.prompt_positions)
            self.rewind(self.o.prompt)
            self.sample(logits)

    def decode(self, lane="decode", pair=None):
        with named("step"):
            with named(lane):
                if pair:
                    pair[0].record()
                if self.graph is not None:
                    self.graph.replay()
                    logits = self.logits
                else:
                    logits = self.forward(self.token, self.position)
                self.position.add_(1)
                if pair:
                    pair[1].record()
            self.sample(logits)

    def sample(self, logits):
        with named("sample"):
            self.token.copy_(logits.argmax(-1, keepdim=True))
        if not self.o.asynchronous:
            self.token.cpu()


class Levels:
    """Switches an engine's level by its control file and sees it take hold in the ring's header."""

    def __init__(self, where):
        mine = [f for f in os.listdir(where) if f.endswith(".ring") and self.pid(os.path.join(where, f)) == os.getpid()]
        if len(mine) != 1:
            sys.exit(f"want one ring of this process in {where}, found {len(mine)}")
        self.ring, self.requests = os.path.join(where, mine[0]), 0

    @staticmethod
    def word(path, offset):
        with open(path, "rb") as f:
            f.seek(offset)
            return struct.unpack("<I", f.read(4))[0]

    @classmethod
    def pid(cls, path):
        return cls.word(path, 0x68)

    def set(self, level, busy):
        """Asks for the level and keeps the engine busy until it is in force: an idle GPU lowers its clocks."""
        self.requests += 1
        tmp = self.ring + ".control.tmp"
        with open(tmp, "w") as f:
            json.dump({"level": level, "id": f"ab-{os.getpid()}-{self.requests}"}, f)
        os.rename(tmp, self.ring + ".control")
        want, end = ["off", "basic", "lane", "kernel"].index(level), time.monotonic() + 5
        while self.word(self.ring, 0x200) != want:
            if time.monotonic() > end:
                sys.exit(f"level {level} was not taken in 5 s")
            busy()


def steps_time(e, n):
    """Seconds of a decode step: the median of n where the host waits for each, else their mean."""
    e.rewind(e.o.prompt)
    torch.cuda.synchronize()
    times = []
    t = start = time.perf_counter()
    for _ in range(n):
        e.decode()
        now = time.perf_counter()
        times.append(now - t)
        t = now
    torch.cuda.synchronize()
    if e.o.asynchronous:
        return (time.perf_counter() - start) / n
    return statistics.median(times)


def median_ci(xs):
    """The median and its 95 % confidence interval by order statistics, xs of 6 or more."""
    xs, n = sorted(xs), len(xs)
    k = max(0, int(n / 2 - 0.98 * n**0.5))
    return statistics.median(xs), xs[k], xs[n - 1 - k]


def ab(e, o):
    """Each condition in turn, round by round, in another order each round; a round's few collections fall between them."""
    conditions = o.ab.split(",")
    levels = Levels(o.dir) if o.dir else None
    rounds = {c: [] for c in conditions}
    warm = lambda: steps_time(e, 8)
    steps_time(e, o.ab_steps)
    gc.disable()
    for r in range(o.rounds):
        gc.collect()
        for c in conditions[r % len(conditions):] + conditions[:r % len(conditions)]:
            if levels:
                levels.set(o.profiler_level if c == "profiler" else c.rstrip("'"), warm)
            if c == "profiler":
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]):
                    warm()
                    rounds[c].append(steps_time(e, o.ab_steps))
            else:
                warm()
                rounds[c].append(steps_time(e, o.ab_steps))
    gc.enable()
    out = {"rounds": o.rounds, "steps": o.ab_steps, "step_us": {c: round(statistics.median(x) * 1e6, 2) for c, x in rounds.items()}, "difference_us": {}}
    for a, b in zip(conditions, conditions[1:]):
        out["difference_us"][f"{b} - {a}"] = [round(v * 1e6, 2) for v in median_ci([y - x for x, y in zip(rounds[a], rounds[b])])]
    return out


def ab_lane(e, o):
    """Steps in fours, in an order drawn anew: one whose range is a lane's, one with two events by hand in its place, two without.

    Neighbours have the same Python, clocks and caches, which whole rounds of a level have not. The difference between the two
    that are alike says what the method cannot tell from nothing; that of the events by hand, what any pair costs there.
    """
    names, draw = ["decode", "by hand", "untimed", "untimed too"], random.Random(o.seed)
    events, used = [torch.cuda.Event(enable_timing=True) for _ in range(256)], 0
    steps_time(e, o.ab_steps)
    gc.disable()
    times, left = {n: [] for n in names}, 0
    for _ in range(o.ab_lane):
        for n in draw.sample(names, len(names)):
            if left == 0:
                e.rewind(e.o.prompt)
                torch.cuda.synchronize()
                left = o.ab_steps
            left -= 1
            pair = None
            if n == "by hand":
                pair, used = events[used:used + 2], (used + 2) % len(events)
            t = time.perf_counter()
            e.decode(n, pair)
            times[n].append(time.perf_counter() - t)
    gc.enable()
    out = {"fours": o.ab_lane, "step_us": {n: round(statistics.median(x) * 1e6, 2) for n, x in times.items()}, "difference_us": {}}
    for n in ("decode", "by hand", "untimed too"):
        pairs = [y - x for x, y in zip(times["untimed"], times[n])]
        out["difference_us"][f"{n} - untimed"] = [round(v * 1e6, 2) for v in median_ci(pairs)]
    return out


def sha(*tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return h.hexdigest()[:16]


def digests(e, steps):
    """Hashes of the weights, and of logits and tokens of a prefill and so many greedy steps: equal where each bit is."""
    e.rewind(0)
    first = e.forward(e.prompt, e.prompt_positions)
    e.prefill()
    tokens = []
    for _ in range(steps):
        e.decode()
        tokens.append(e.token.clone())
    last = e.forward(e.token, e.position)
    return {"weights": sha(*e.model.parameters()), "prefill": sha(first), "tokens": sha(*tokens), "logits": sha(last)}


def serve(e, o):
    """Prefills and decodes for o.seconds; returns step times by kind, in seconds."""
    times = {"prefill": [], "decode": []}
    end = time.monotonic() + o.seconds
    while time.monotonic() < end:
        t = time.perf_counter()
        e.prefill()
        times["prefill"].append(time.perf_counter() - t)
        for _ in range(o.output):
            t = time.perf_counter()
            e.decode()
            times["decode"].append(time.perf_counter() - t)
    torch.cuda.synchronize()
    return times


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--graph", action="store_true", help="decode by replaying a CUDA graph")
    p.add_argument("--asynchronous", action="store_true", help="do not wait for each step's tokens")
    p.add_argument("--layers", type=int, default=16, help="16 are 1.1 billion weights (default %(default)s)")
    p.add_argument("--batch", type=int, default=8, help="sequences (default %(default)s)")
    p.add_argument("--prompt", type=int, default=256, help="prompt tokens a sequence (default %(default)s)")
    p.add_argument("--output", type=int, default=256, help="decode steps after each prefill (default %(default)s)")
    p.add_argument("--seconds", type=float, default=10, help="how long to serve (default %(default)s)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--ab", default="", metavar="LEVELS", help="measure levels against each other, e.g. off,off',lane,kernel (two alike show what the method cannot tell from nothing); without lanetrace plain,profiler")
    p.add_argument("--ab-lane", type=int, default=0, metavar="N", help="measure N times a decode step with a lane against others without; needs level lane and LANETRACE_LANES=decode")
    p.add_argument("--rounds", type=int, default=25, help="of --ab (default %(default)s)")
    p.add_argument("--ab-steps", type=int, default=50, help="decode steps a level a round (default %(default)s)")
    p.add_argument("--profiler-level", default="off", help="the level under 'profiler' (default %(default)s)")
    p.add_argument("--dir", default=os.environ.get("LANETRACE_DIR", ""), help="ring directory, for --ab (default $LANETRACE_DIR)")
    p.add_argument("--steps", type=int, default=0, help="measure one mean over so many decode steps instead")
    p.add_argument("--deterministic", action="store_true", help="only algorithms whose results do not depend on timing")
    o = p.parse_args()
    if o.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if o.ab_steps + 16 > o.output or o.steps and o.steps > o.output:
        p.error("--ab-steps and --steps must fit into --output")
    if o.ab and not o.dir and set(o.ab.split(",")) - {"plain", "profiler"}:
        p.error("levels need lanetrace and its ring directory: set LANETRACE_DIR or --dir")
    if o.ab_lane and o.asynchronous:
        p.error("--ab-lane times single steps: not with --asynchronous")
    e = Engine(o)
    out = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "graph": o.graph,
           "weights": sum(x.numel() for x in e.model.parameters()), "digests": digests(e, 16)}
    if o.ab:
        out["ab"] = ab(e, o)
    elif o.ab_lane:
        out["ab_lane"] = ab_lane(e, o)
    elif o.steps:
        steps_time(e, o.steps)
        out["step_us"] = statistics.median(steps_time(e, o.steps) for _ in range(9)) * 1e6
    else:
        times = serve(e, o)
        out["steps"] = {k: len(v) for k, v in times.items()}
        out["median_us"] = {k: statistics.median(v) * 1e6 for k, v in times.items() if v}
    json.dump(out, sys.stdout)
    print()


if __name__ == "__main__":
    main()
