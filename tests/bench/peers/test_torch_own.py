# SPDX-License-Identifier: BSD-3-Clause
"""What torch itself has, in the race and right."""

from dataclasses import replace

import pytest
import torch

from blockscale.bench.peers import torch_own
from blockscale.bench.requests import Primitive
from tests.bench.products import errors
from tests.support.bench_runs import SETTINGS, measured


def test_they_run():
    assert torch_own.unavailable() is None
    [case] = measured(replace(SETTINGS, peers=True, only="linear/256x32/m=2"))
    names = {line["name"] for line in case["contestants"]}
    assert {"torch bf16", "torch dynamic int8", "torch._int_mm"} <= names


def test_they_compute_the_layer():
    measured = errors(torch_own, skip=("torch._int_mm",))  # its input is given in int8
    assert list(measured) == ["torch bf16", "torch dynamic int8"]
    assert max(measured.values()) < 0.02


@pytest.mark.parametrize("name", ["int8", "int8_channel"])
def test_primitives(name):
    cases = measured(replace(SETTINGS, peers=True, formats=(name,), only="quantize/"))
    assert not any(case["skipped"] for case in cases)
    [case] = [case for case in cases if case["name"].startswith("quantize/")]
    peer = case["contestants"][-1]
    assert (peer["kind"], peer["note"]) == ("peer", "its scale is given")
    assert peer["name"].startswith("torch quantize_per_")


def test_what_torch_lacks():
    def peers(*request):
        return list(torch_own.primitive(Primitive(*request)))

    shape = (4, 64)
    assert not peers("quantize", "mxfp4", shape, torch.float32)
    assert not peers("quantize", "int8", shape, torch.bfloat16)
    assert not peers("quantize", "int8", shape, torch.float32, "cuda")
    assert len(peers("dequantize", "int8", shape, torch.float32)) == 1
