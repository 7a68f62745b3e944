# SPDX-License-Identifier: BSD-3-Clause
"""onnxruntime, in the race and right, where it is installed."""

import importlib.util
from dataclasses import replace

import pytest

from blockscale.bench.peers import onnxruntime
from blockscale.bench.requests import Layer
from tests.bench.products import errors
from tests.support.bench_runs import SETTINGS, measured

HERE = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))
NAMES = [
    "onnxruntime fp32",
    "onnxruntime DynamicQuantizeMatMul int8",
    "onnxruntime MatMulNBits int4 group 32",
]


def test_why_it_cannot_run():
    reason = onnxruntime.unavailable()
    assert reason is None if HERE else reason.endswith(" is not installed")
    [case] = measured(replace(SETTINGS, peers=True, only="linear/256x32/m=2"))
    skipped = [each["name"] for each in case["skipped"]]
    assert skipped == ([] if HERE else ["onnxruntime"])


@pytest.mark.skipif(not HERE, reason="onnx and onnxruntime are no part of the test's requirements")
def test_it_computes_the_layer():
    measured = errors(onnxruntime)
    assert list(measured) == NAMES
    for name, error in measured.items():
        assert error < (0.15 if "int4" in name else 0.02), name


def test_groups_that_do_not_fit():
    """The graphs are made when they are built: names need no onnx."""
    assert [peer.name for peer in onnxruntime.linear(Layer(64, 8))] == NAMES
    assert [peer.name for peer in onnxruntime.linear(Layer(40, 8))] == NAMES[:2]
