# SPDX-License-Identifier: BSD-3-Clause
"""torchao, in the race and right."""

from dataclasses import replace

import pytest
import torch

from blockscale.bench.peers import torchao
from blockscale.bench.requests import Primitive
from tests.bench.products import errors
from tests.support.bench_runs import SETTINGS, measured


def test_it_computes_the_layer():
    assert torchao.unavailable() is None
    measured = errors(torchao)
    assert list(measured) == ["torchao int8 dynamic eager"]
    assert max(measured.values()) < 0.02


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_primitives(name):
    cases = measured(replace(SETTINGS, peers=True, formats=(name,), only="quantize/"))
    assert not any(case["skipped"] for case in cases)
    [case] = [case for case in cases if case["name"].startswith("quantize/")]
    assert case["contestants"][-1]["kind"] == "peer"
    assert case["contestants"][-1]["name"] == f"torchao {name} eager"


def test_compiled_where_it_is_asked_for():
    wanted = Primitive("quantize", "int8:group128:fp32", (4, 256), torch.float32)
    assert [peer.name for peer in torchao.primitive(wanted)] == ["torchao int8 eager"]
    names = [peer.name for peer in torchao.primitive(replace(wanted, compiled=True))]
    assert names == ["torchao int8 eager", "torchao int8 compiled"]
    mx = Primitive("quantize", "mxfp4", (4, 256), torch.bfloat16, "cuda", compiled=True)
    names = [peer.name for peer in torchao.primitive(mx)]
    assert names == ["torchao mxfp4 eager", "torchao mxfp4 compiled"]
