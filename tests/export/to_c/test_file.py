# SPDX-License-Identifier: BSD-3-Clause
"""The file's head and macros."""

import random

import torch

from blockscale.export.to_c import c_file, identifier, meet, plan
from blockscale.export.to_c.graph_walk import walk
from blockscale.export.to_c.text import Array
from tests.support.c_handmade import handmade
from tests.support.integer_oracle import UINT8, shifts, whole


def test_head():
    x = whole(-9, 9, 3, 4, dtype=torch.int8)
    graph = handmade({"x": x}, [("rescale", ["x", 1, shifts(1), 5, 0, 255, UINT8])])
    found = c_file(walk(graph, [x]), "net")
    assert " * input int8_t in_x[12]: 3 x 4\n * output uint8_t out_0[12]: 3 x 4\n" in found.text
    assert "#define NET_OUT_0_SIZE 12\n" in found.text and (found.tables, found.arena) == (0, 12)
    assert "int net_run(const int8_t *in_x, uint8_t *out_0);" in found.text


def test_names():
    assert identifier("net_2") and not identifier("2net") and not identifier("a-b")


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
