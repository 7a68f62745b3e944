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


def test_types_are_built_once_and_are_what_they_were() -> None:
    """By element and shape; what is no shape is refused each time."""
    block = tl.core.block_type
    for _ in range(2):
        one, other = block(tl.float32, [4, 8]), block(tl.int8, [4, 8])
        assert str(one).endswith(", fp32>") and str(other) == str(one).replace("fp32", "int8")
        assert [*one.shape] == [4, 8] and one.numel == 32 and one != other
        assert one.with_element_ty(tl.int8) == other and one.nbytes == 128
        pointers = [block(tl.pointer_type(each), [4, 8]) for each in (tl.float32, tl.int8)]
        assert [each.element_ty.element_ty for each in pointers] == [tl.float32, tl.int8]
        assert block(tl.float32, [8, 4]) != one
        with pytest.raises(ValueError, match="power of 2"):
            block(tl.float32, [3])
        with pytest.raises(TypeError, match="0d"):
            block(tl.float32, [])


def test_tensors_have_shapes_of_their_own() -> None:
    for _ in range(2):
        for shape in ([4, 8], [8, 4], [32]):
            tensor = tl.tensor(None, tl.core.block_type(tl.float32, shape))
            assert [each.value for each in tensor.shape] == shape and tensor.numel.value == 32
            assert tensor.dtype == tl.float32 and tensor.type.shape[0] == shape[0]
        number = tl.tensor(None, tl.int32)
        assert len(number.shape) == 0 and number.numel.value == 1 and number.dtype == tl.int32


def test_numpys_dtypes() -> None:
    from triton.runtime.interpreter import _get_np_dtype

    for _ in range(2):
        for one, found in ((tl.float32, "float32"), (tl.int1, "bool"), (tl.bfloat16, "uint16"),
                           (tl.pointer_type(tl.int8), "uint64")):  # fmt: skip
            assert _get_np_dtype(one) == found
            assert _get_np_dtype(tl.core.block_type(one, [4])) == found
