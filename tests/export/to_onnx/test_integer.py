# SPDX-License-Identifier: BSD-3-Clause
"""Integer ops in onnxruntime give the ops' own integers: every shift, rounding and width."""

import pytest
import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.export.to_onnx.integer import TensorInput, is_written, step
from blockscale.ops.integer import INTEGER_OPS
from tests.export.to_onnx.running import EDGES, run, same

SUMS = torch.tensor(
    [0, 1, -1, 2, 3, -3, 5, -5, 6, -6, 7, 8, 12, -12, 1000, -1001, 2**31 - 1, -(2**31)]
)
WIDE = torch.cat([SUMS, torch.tensor([2**45 + 2**21, -(2**45), 2**61 + 5, 3 * 2**40 + 2**17])])
INT8 = "int8:tensor:pow2/nearest"


def check(op: str, *args: object, stored: tuple[str, ...] = ()) -> None:
    """An op of tensors that the graph computes, but for those that a model holds: `stored`."""
    found = INTEGER_OPS[f"integer_{op}"]
    held = (*stored, "shift", "table")
    given = dict(zip(found.signature.names, args, strict=True))
    computed = [n for n, a in given.items() if isinstance(a, Tensor) and n not in held]

    def build(scope, names):
        taken = {
            name: TensorInput(each, given[name].dtype, tuple(given[name].shape))
            for name, each in zip(computed, names, strict=True)
        }
        return step(scope, op, given | taken)

    assert is_written(op)
    expected = found.reference(*args)
    result = run(build, *(given[name] for name in computed))
    assert result.dtype == expected.dtype
    assert same(result, expected)


def by(*shifts: int) -> Tensor:
    return torch.tensor(shifts, dtype=torch.int32)


def codes(*shape: int, dtype: torch.dtype = torch.int8, reach: int = 128) -> Tensor:
    low = 0 if dtype == torch.uint8 else -reach
    return torch.randint(low, 256 if low == 0 else reach, shape).to(dtype)


FORMATS = [INT8, "uint8:tensor:pow2/floor:asym", "int4:tensor:e8m0",
           "int16:tensor:pow2/floor:down", "uint5:tensor:pow2/floor:toward_zero",
           "int8:tensor:pow2/floor:up", "int8:tensor:pow2/floor:nearest_away"]  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("spelling", FORMATS)
def test_into_codes_and_out_of_them(spelling):
    fmt = parse(spelling)
    zero = 17 if fmt.asym else 0
    low, high = (int(limit) for limit in fmt.element.limits(fmt.wide))
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
    values = torch.cat([EDGES, torch.arange(-9, 9, 0.125), odd])
    check("quantize", values, -2, zero, spelling)
    check("dequantize", torch.arange(16).to(fmt.element.code_dtype), zero, -3)
    for shift in (4, 0, -3, 40):
        end = (by(shift), zero, low, high, spelling)
        check("rescale", SUMS.to(torch.int32), 0, *end)
        check("rescale", WIDE, 0, *end)
    check("rescale", codes(3, 5), 7, by(2), zero, low, high, spelling)


def test_sums_that_stay_sums():
    x = codes(4, 3).to(torch.int32)
    check("rescale", x, 0, by(-3, 0, -7), 0, 0, 0, "")
    check("rescale", x, 0, by(0), 0, -5, 60, "")
    check("rescale", WIDE, 0, by(0), 0, 0, 0, "")
    check("dequantize", WIDE, 0, -3)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
@pytest.mark.parametrize("weight", [torch.int8, torch.int16])
def test_matrices(dtype, weight):
    x, w = codes(2, 3, 20, dtype=dtype), codes(4, 20, dtype=weight, reach=100)
    bias, zero = torch.tensor([5, -6, 7, 100], dtype=torch.int32), 9 * (dtype == torch.uint8)
    end = (by(9, 8, 10, 7), 3, -127, 127, INT8)
    check("linear", x, w, bias, zero, 10**6, *end, stored=("weight", "bias"))
    check("linear", x, w, None, zero, 10**6, by(0), 0, 0, 0, "", stored=("weight",))
    check("linear", x, w, bias, 3, 10**10, *end, stored=("weight", "bias"))  # sums of 64 bits


def test_weights_far_apart_and_codes_around_a_point():
    x = codes(3, 8, dtype=torch.int16)
    wide = torch.randint(-(2**30), 2**30, (4, 8))
    end = (by(24), 0, -127, 127, INT8)
    check("linear", x, wide, None, 0, 2**40, *end, stored=("weight",))
    check("linear", x, codes(4, 8), None, 300, 2**20, *end, stored=("weight",))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_convolutions(dtype, groups):
    x, zero = codes(2, 9, 8, 4, dtype=dtype), 9 * (dtype == torch.uint8)
    w, bias = codes(6, 4 // groups * 6), torch.arange(6, dtype=torch.int32) * 100
    settings = ([6, 4 // groups, 3, 2], [2, 1], [1, 0], [1, 2], groups, False, [])
    for largest, *end in (
        (10**6, by(9, 8, 10, 7, 7, 9), 3, -127, 127, INT8),
        (10**6, by(-2), 0, 0, 10**6, ""),
        (10**6 << 20, by(-20, 0, -1, -2, -3, -4), 0, 0, 0, ""),  # beyond int32 when they are moved
    ):
        args = (x, w, bias, *settings, zero, largest, *end)
        check("conv", *args, stored=("weight", "bias"))


def test_convolutions_that_onnx_has_not():
    x, w, end = codes(1, 4, 4, 2), codes(2, 8), (by(9), 0, -127, 127, INT8)
    settings = ([2, 2, 2, 2], [1, 1], [0, 0], [1, 1], 1)
    with pytest.raises(ValueError, match="no transposed convolution of integers: leave it in fl"):
        check("conv", x, w, None, *settings, True, [], 0, 10**6, *end, stored=("weight",))
    for given, zero, largest in ((x.to(torch.int16), 3, 10**6), (x, 0, 10**10)):
        args = (given, w, None, *settings, False, [], zero, largest, *end)
        with pytest.raises(ValueError, match="has no integer operator in ONNX: use formats of 8"):
            check("conv", *args, stored=("weight",))


@pytest.mark.parametrize("largest", [10**6, 10**11])
def test_of_two_tensors(largest):
    a, b = codes(2, 3, 4), codes(2, 4, 5, dtype=torch.uint8)
    end = (by(5), 3, -127, 127, INT8)
    check("matmul", a, b, 1, 7, largest, *end)
    check("mul", a, codes(3, 1, dtype=torch.int16), 1, 0, largest, *end)
    check("add", a, codes(3, 4, dtype=torch.uint8), 1, 7, 3, 0, 1, largest, *end)
    check("add", a.int() << 20, a, 0, 0, 0, 4, -1, largest, by(0), 0, 0, 0, "")


def test_tables():
    table = codes(256, dtype=torch.uint8)
    check("look_up", torch.arange(-128, 128).to(torch.int8), table)
    check("look_up", torch.arange(256).to(torch.uint8), table)
    check("look_up", torch.arange(-9, 9).to(torch.int16), codes(65536))
    check("embedding", codes(7, 3), torch.tensor([[6, 0], [2, 2]]), stored=("weight",))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
def test_windows(dtype):
    x, end = codes(2, 3, 8, 9, dtype=dtype), (by(1), 0, -127, 127, INT8)
    check("sum_pool", x, [2, 4], [2, 1], [1, 2], 0, 10**6, 1, *end)
    check("sum_pool", x, [8, 9], [8, 9], [0, 0], 3, 10**6, 1, by(0), 0, 0, 0, "")
    check("sum_pool", x[0], [3], [2], [1], 3, 10**6, 3, *end)
    check("max_pool", x, [3, 3], [2, 2], [1, 1], [1, 1], False)
    for rounding in ("", ":down", ":up", ":toward_zero", ":nearest_away"):
        for shift in (by(1), by(-2)):
            fmt = INT8 + rounding
            check("sum_over", x, [2, 3], True, 5, 10**6, 72, shift, 0, -127, 127, fmt)
    check("sum_over", x, [1], False, 5, 10**6, 1, by(-1), 0, 0, 0, "")


def test_windows_that_only_codes_have():
    args = ([3, 3], [2, 2], [1, 1], [2, 2], True)
    check("max_pool", codes(2, 3, 9, 9), *args)
    with pytest.raises(ValueError, match="no ceil_mode and no dilation in ONNX"):
        check("max_pool", codes(2, 3, 9, 9, dtype=torch.int32), *args)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_padding_of_integers(dtype):
    x = codes(2, 3, 4, dtype=dtype)

    def build(scope, names):
        taken = TensorInput(names[0], dtype, tuple(x.shape))
        return step(scope, "pad", {"x": taken, "pad": [1, 0, 2, 3], "value": 7})

    found = run(build, x)
    assert found.dtype == dtype
    assert torch.equal(found, torch.nn.functional.pad(x, [1, 0, 2, 3], value=7))


def test_ops_that_onnx_has_not():
    missing = {name for name in INTEGER_OPS if not is_written(name.removeprefix("integer_"))}
    assert missing == {"integer_attention", "integer_softmax", "integer_layer_norm"}
