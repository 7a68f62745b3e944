"""Memory: what lives at the same time does not meet, and what does not shares its bytes."""

import random

import torch

from blockscale.export.to_c.plan import meet, plan
from blockscale.export.to_c.values import Array


def test_no_two_meet():
    draw = random.Random(0)
    arrays = []
    for n in range(200):
        dtype = draw.choice([torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
        first = draw.randrange(50)
        arrays.append(Array(f"a{n}", "arena", dtype, draw.randrange(1, 99), n, first,
                            first + draw.randrange(5)))  # fmt: skip
    sizes = plan(arrays)
    for a in arrays:
        assert a.offset + a.size <= sizes[a.dtype.itemsize]
        for b in arrays:
            if a is not b and a.dtype.itemsize == b.dtype.itemsize and meet(a, b):
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    assert sum(sizes.values()) < sum(a.size for a in arrays) / 3


def test_a_chain_takes_two():
    chain = [Array(f"a{n}", "arena", torch.int8, 10, n, n, n + 1) for n in range(6)]
    assert plan(chain) == {1: 20}
