# SPDX-License-Identifier: BSD-3-Clause
"""What operations are timed, and what block sizes bring."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.selection.system import operations as module
from blockscale.selection.system.operations import (
    block_sizes,
    memory_usage,
    operation_times,
    optimal_block_size,
)


@pytest.fixture(autouse=True)
def _times_that_are_known(monkeypatch):
    def race(calls):
        for run in calls.values():
            run()
        return {key: 2.0 for key in calls}  # noqa: C420 - a value for each

    monkeypatch.setattr(module, "race", race)


def test_operations():
    found = {(e.operation, e.format): e for e in operation_times(("mxfp4", "int8"), (8, 64))}
    assert len(found) == 6
    stored = bs.quantize(torch.zeros(8, 64), "mxfp4").nbytes
    assert found["quantize", "mxfp4"].rate == (8 * 64 * 4 + stored) / 2
    assert found["dequantize", "mxfp4"].rate == (8 * 64 * 4 + stored) / 2
    assert found["fake_quantize", "mxfp4"].rate == 8 * 64 * 4


def test_block_sizes():
    torch.manual_seed(0)
    weight = torch.randn(16, 128)
    found = block_sizes("int4", data=weight, sizes=(32, 64, 128))
    assert [each.size for each in found] == [32, 64, 128]
    for each in found:
        q = bs.quantize(weight, f"int4:group{each.size}:fp16")
        assert each.bits == 8 * q.nbytes / weight.numel()
        noise = (weight - q.dequantize()).double().square().sum()
        sqnr = 10 * math.log10(float(weight.double().square().sum() / noise))
        assert each.sqnr == pytest.approx(sqnr, rel=1e-9)
        assert (each.product, each.quantize) == (2.0, 2.0)
    with pytest.raises(ValueError, match="int99x"):
        block_sizes("int99x", data=weight)


def test_memory():
    usage = {(e.operation, e.format): e for e in memory_usage(("mxfp4",), (8, 64))}
    stored = bs.quantize(torch.zeros(8, 64), "mxfp4").nbytes
    assert {each.stored for each in usage.values()} == {stored}
    assert usage["quantize", "mxfp4"].result == stored
    assert (
        usage["dequantize", "mxfp4"].result == usage["fake_quantize", "mxfp4"].result == 8 * 64 * 4
    )
    assert all(each.temporary >= 0 for each in usage.values())


@pytest.mark.parametrize(
    ("element", "scale", "size"),
    [("int4", "fp16", 64), ("int4", "fp32", 128), ("int8", "fp16", 32), ("int2", "fp16", 128),
     ("int1", "fp32", None), ("int2", "fp32", 256)],
)  # fmt: skip
def test_the_best_block_size_is_counted(element, scale, size):
    if size is None:
        with pytest.raises(ValueError, match="unknown element 'int1'; choose from"):
            optimal_block_size(element, scale)
        return
    assert optimal_block_size(element, scale) == size
    bits = bs.parse(f"{element}:group{size}:{scale}").bits
    assert 32 / size * (1 if scale == "fp32" else 0.5) <= (bits + 32 / size) / 16
    assert optimal_block_size(element, scale, share=1e-9) == 2048
