# SPDX-License-Identifier: BSD-3-Clause
"""Inputs that end where memory does: a kernel that reads on does not come back."""

from pathlib import Path

import pytest

from tests.support import fresh

ROOT = Path(__file__).parents[3]
SCRIPT = """
import ctypes, mmap, sys
import torch
import blockscale as bs
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.kernels.cpu import _native
from blockscale.ops import primitives as P
from blockscale.ops.embedding import embedding
from tests.kernels.cpu.equal import differing, everything, settings
from tests.support.cpu_primitives import ELEMENTS, rough

torch.set_num_threads(1)
libc, PAGE, kept = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, []

def at_the_end(x):
    "x with its last byte before a page that cannot be read."
    size = x.numel() * x.itemsize
    pages = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, pages + PAGE)
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(start + pages), PAGE, 0) == 0
    whole = torch.frombuffer(memory, dtype=torch.uint8)[pages - size : pages]
    y = whole.view(x.dtype).reshape(x.shape)
    y.copy_(x)
    return y

one_in = int(sys.argv[1])
for number, element in enumerate(ELEMENTS):
    if number * 0.618034 % 1 >= 1 / one_in:
        continue
    block = ("group16", "token", "channel1", "group7", "tile2x5")[number % 5]
    fmt = f"{element}:{block}:{('fp32', 'bf16', 'e8m0/floor', 'e4m3')[number % 4]}"
    fmt += ":asym" if "int" in element and number % 2 else ""
    fmt += ":offset" if "int" in element and number % 2 == 0 else ""
    for shape in [(3, 8), (5, 33), (2, 2051), (1, 24)]:
        dtype = (torch.float32, torch.bfloat16, torch.float16)[number % 3]
        x = at_the_end(rough(shape, 1).to(dtype))
        with bs.use("reference"):
            packed, *parts = P.choose_quantize(x, fmt, None)
            packed, parts = at_the_end(packed), [at_the_end(part) for part in parts]
            qparams = P.from_list(parts, parse(fmt))
            arguments = x, fmt, packed, qparams, None
            expected = everything(*arguments)
        rows = at_the_end(torch.tensor([0, shape[0] - 1]))
        for isa in _native.isas():
            with settings(isa, 1):
                assert differing(everything(*arguments), expected) == [], (fmt, shape, isa)
                embedding(operand(packed, qparams, fmt, shape[1]), rows, torch.float32)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("one_in", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_is_read_beyond_inputs(one_in: int) -> None:
    """One element in so many."""
    done = fresh.run(SCRIPT, one_in, cwd=ROOT, ready=fresh.WITH_OURS)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
