# SPDX-License-Identifier: BSD-3-Clause
"""Cases of primitives: what is measured, and the share of a copy's bandwidth."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.bench.groups import primitives
from blockscale.bench.requests import Primitive
from blockscale.bench.settings import Settings
from tests.support.bench_runs import SETTINGS, measured


def test_figures():
    [case] = measured(replace(SETTINGS, only="[q]uantize/mxfp4/4x256/float32"))
    ours, *copied = case["contestants"]
    assert ours["backend"] in ("cpu", "reference")
    best = min(line["seconds"] for line in copied)
    assert ours["of_copy"] == pytest.approx(best / ours["seconds"])
    assert (case["bytes"], case["reads"]) == (4 * 1024 + 512 + 32, 1)


@pytest.mark.parametrize("name", ["mxfp4", "int8:group32:e8m0/floor:stochastic"])
def test_what_is_called_is_the_public_function(name):
    x = Primitive("quantize", name, (4, 64), torch.float32).x
    seed = 1 if "stochastic" in name else None
    q = bs.quantize(x, name, seed=seed)

    def called(op):
        return primitives.ours(Primitive(op, name, (4, 64), torch.float32))()

    assert torch.equal(called("quantize").packed, q.packed)
    assert torch.equal(called("dequantize"), q.dequantize())
    assert torch.equal(called("fake_quantize"), bs.fake_quantize(x, name, seed=seed))


def test_codes_do_not_know_how_they_were_rounded():
    """So a format that differs in its rounding alone is not dequantized once more."""
    name = "int8:group32:e8m0/floor:stochastic"
    names = [case.name for case in primitives.cases(replace(SETTINGS, formats=(name,)))]
    assert names == [f"{op}/{name}/4x256/float32" for op in ("quantize", "fake_quantize")]


def test_a_gpu_compiles_fewer_formats():
    every = {case.about["format"] for case in primitives.cases(Settings(peers=False))}
    assert every == {*bs.formats(), *primitives.MORE}
    assert set(primitives.GPU) < every | set(primitives.MORE) | {"e4m3:tile128x128:fp32"}
    assert set(primitives.NARROW) | set(primitives.QUICK) <= set(bs.formats())
