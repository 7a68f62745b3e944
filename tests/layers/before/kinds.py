# SPDX-License-Identifier: BSD-3-Clause
"""Kinds of Before on whole numbers and powers of two, so that nothing rounds.

Each kind brings its examples in its test: `examples(k)` in the test_*.py that has the kind's name.
"""

import importlib

import torch
from torch import Tensor

from blockscale.layers import before
from blockscale.layers.before import Before

K = 24
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def whole(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).float()


def powers(k: int = K) -> Tensor:
    return 2.0 ** torch.randint(-3, 4, (k,))


def kinds(k: int = K) -> list[Before]:
    """Examples of every kind there is, for k features."""
    tests = [importlib.import_module(f"tests.layers.before.test_{name}") for name in before.kinds()]
    return [example for test in tests for example in test.examples(k)]


def same(a: Tensor, b: Tensor) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
