"""What operations are timed, and what block sizes bring."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.search.system import operations as module
from blockscale.search.system.operations import block_sizes, operation_times


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
