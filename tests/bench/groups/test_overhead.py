# SPDX-License-Identifier: BSD-3-Clause
"""What a call costs: our function and our op, beside torch's op that does the same."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.bench.groups import overhead
from blockscale.bench.settings import Settings
from tests.support.bench_runs import SETTINGS, measured


def test_figures():
    [case] = measured(replace(SETTINGS, only="overhead/quantize/int8/*"))
    lines = {line["name"]: line for line in case["contestants"]}
    assert list(lines) == ["public function", "op", "torch"]
    for line in lines.values():
        assert line["microseconds"] == pytest.approx(1e6 * line["seconds"])
    difference = lines["op"]["seconds"] - lines["torch"]["seconds"]
    assert lines["op"]["over_torch"] == pytest.approx(1e6 * difference)
    assert "over_torch" not in lines["torch"]
    assert lines["torch"]["note"] == "torch's quantize_per_tensor"


@pytest.mark.parametrize("op", overhead._MAKERS)
@pytest.mark.parametrize("fmt", overhead.FORMATS)
def test_the_function_and_the_op_do_the_same(op, fmt):
    """And torch's, in int8, what is meant: codes of a symmetric scale."""
    x = torch.randn(4, 64)
    public, direct, (name, theirs) = overhead._MAKERS[op](x, str(bs.parse(fmt)))
    ours, same = public(), direct()
    if op == "choose_quantize":
        assert torch.equal(ours.packed, same[0]) and torch.equal(ours.qparams.scale, same[1])
    elif op == "quantize":
        assert torch.equal(ours.packed, same)
    else:
        assert torch.equal(ours, same)
    assert tuple(theirs().shape) == (4, 64)
    assert hasattr(torch, name) or hasattr(torch.Tensor, name)


def test_a_gpu_has_one_op_that_torch_has_too():
    names = {case.about["op"] for case in overhead.cases(Settings("cuda"))}
    assert names == {"fake_quantize"}
    assert all(case.host for case in overhead.cases(Settings("cuda")))
