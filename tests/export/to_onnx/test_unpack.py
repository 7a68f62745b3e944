# SPDX-License-Identifier: BSD-3-Clause
"""Packed codes of every width, taken apart by onnxruntime, are the reference's values."""

import numpy as np
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from blockscale.core import pack as packing
from blockscale.core.parse import parse
from blockscale.export.to_onnx.stored import put_tensor
from blockscale.export.to_onnx.unpack import decode, group, unpack, whole_groups
from tests.export.to_onnx.running import made, run, same

ELEMENTS = [
    *(f"{sign}int{bits}" for bits in range(2, 17) for sign in ("", "u")),
    *("uint1", "binary", "ternary", "log2", "log4", "log8", "nf4", "e2m1", "e3m2", "e2m3", "e4m3"),
    *("e5m2", "e1m1", "e1m3", "iq4_nl", "apot5", "log8f3", "book(-1,0,0.25)"),
]


def element(name):
    return parse(f"{name}:tensor:fp32").element


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ELEMENTS)
def test_values_are_the_references(name):
    made = element(name)
    for size in (1, 7, 24, 37):
        patterns = torch.randint(2**made.bits, (3, size), dtype=torch.int32)
        codes = made.from_bits(patterns.to(torch.uint8) if made.bits <= 8 else patterns)
        packed = whole_groups(packing.pack(codes, made), made.bits)

        def build(scope, names, packed=packed, size=size):
            stored = put_tensor(scope.file, "codes", packed)
            return decode(scope, unpack(scope, stored, made, size), made)

        assert same(run(build), made.decode(codes)), (name, size)


class BitShift(OpRun):
    """As OpenVINO 2026.4 computes it: a product with, or a division by, a power of two, rounded."""

    op_domain = ""

    def _run(self, x, by, direction):
        power = 2.0 ** by.astype(np.float64)
        exact = x * power if direction == "LEFT" else x / power
        return (np.round(exact).astype(x.dtype),)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15])
def test_nothing_but_zeros_is_shifted_out(bits):
    made_of = element("uint1" if bits == 1 else f"uint{bits}")
    codes = torch.randint(2**bits, (5, 41), dtype=torch.int32)
    codes = codes.to(made_of.code_dtype)
    packed = whole_groups(packing.pack(codes, made_of), bits)

    def build(scope, names):
        stored = put_tensor(scope.file, "codes", packed)
        return unpack(scope, stored, made_of, 41)

    model = made(build)
    for new_ops in ([], [BitShift]):
        [found] = ReferenceEvaluator(model, new_ops=new_ops).run(None, {})
        assert np.array_equal(found, codes.numpy()), new_ops


def test_groups_fill_whole_bytes():
    assert [group(bits) for bits in (1, 3, 4, 6, 7, 12)] == [
        (8, 1), (8, 3), (2, 1), (4, 3), (8, 7), (2, 3),
    ]  # fmt: skip
    assert whole_groups(torch.ones(2, 4, dtype=torch.uint8), 6).shape == (2, 6)
    assert whole_groups(torch.ones(2, 5, dtype=torch.int8), 8).shape == (2, 5)
