# SPDX-License-Identifier: BSD-3-Clause
"""Triton's interpreter replaces triton.language once a launch, and puts it back behind it."""

import pytest
import torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@triton.jit
def halved(x):
    return tl.where(x > 1, tl.max(x, 0), x / 2)


@triton.jit
def kernel(x, y, n: tl.constexpr):
    at = tl.arange(0, n)
    value = tl.load(x + at)
    for _ in tl.static_range(3):
        value = halved(value)
    tl.store(y + at, value)


def test_once_a_launch(monkeypatch) -> None:
    from triton.runtime import interpreter

    replace, launches = interpreter._patch_lang, []
    monkeypatch.setattr(interpreter, "_patch_lang", lambda fn: launches.append(fn) or replace(fn))
    before = {(place, name): each for place in (tl, tl.core, tl.math, tl.tensor)
              for name, each in vars(place).items()}  # fmt: skip
    x, y = torch.tensor([0.5, 1.0, 3.0, 5.0]), torch.empty(4)
    for count in (1, 2):
        kernel[(1,)](x, y, n=4)
        assert y.tolist() == [0.0625, 0.125, 5.0, 5.0]
        assert len(launches) == count
        assert all(vars(place)[name] is each for (place, name), each in before.items())


def test_an_error_in_a_device_function_ends_the_launch() -> None:
    from triton.runtime.errors import InterpreterError

    with pytest.raises(InterpreterError):
        kernel[(1,)](torch.ones(4), None, n=4)
    y = torch.empty(4)
    kernel[(1,)](torch.ones(4), y, n=4)
    assert y.tolist() == [0.125] * 4
