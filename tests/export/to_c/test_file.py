"""The file's head and macros."""

import torch

from blockscale.export.to_c.file import identifier, written
from blockscale.export.to_c.walk import walk
from tests.support.c_handmade import handmade
from tests.support.integer_oracle import UINT8, shifts, whole


def test_head():
    x = whole(-9, 9, 3, 4, dtype=torch.int8)
    graph = handmade({"x": x}, [("rescale", ["x", 1, shifts(1), 5, 0, 255, UINT8])])
    found = written(walk(graph, [x]), "net")
    assert " * input int8_t in_x[12]: 3 x 4\n * output uint8_t out_0[12]: 3 x 4\n" in found.text
    assert "#define NET_OUT_0_SIZE 12\n" in found.text and (found.tables, found.arena) == (0, 12)
    assert "int net_run(const int8_t *in_x, uint8_t *out_0);" in found.text


def test_names():
    assert identifier("net_2") and not identifier("2net") and not identifier("a-b")
