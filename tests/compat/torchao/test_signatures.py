# SPDX-License-Identifier: BSD-3-Clause
"""All functions of blockscale.compat.torchao: torchao's signatures, and errors that help."""

import inspect

import pytest
import torch
from torch import Tensor

from blockscale.compat import torchao as ours
from tests.compat.torchao.inputs import (
    ASYMMETRIC,
    FLOAT,
    NONE,
    SYMMETRIC,
    theirs,
)


def described(parameter: inspect.Parameter) -> tuple[object, ...]:
    default = parameter.default  # torchao's enum members are not ours, but have their names
    return parameter.name, parameter.kind, getattr(default, "name", default)


@pytest.mark.parametrize("name", [n for n in dir(ours) if n.endswith(("affine", "min_max"))])
def test_signatures_are_torchaos_with_keywords_after(name: str) -> None:
    mine = list(inspect.signature(getattr(ours, name)).parameters.values())
    original = getattr(theirs, name, None) or getattr(theirs, f"_{name}")
    expected = list(inspect.signature(original).parameters.values())
    head, added = mine[: len(expected)], mine[len(expected) :]
    assert list(map(described, head)) == list(map(described, expected))
    assert added or "zero_point_domain" in inspect.signature(original).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in added)


def choose(
    x: Tensor, block: tuple[int, ...] = (1, 32), target=torch.int8, mapping=ASYMMETRIC, **key
):
    return ours.choose_qparams_affine(x, mapping, block, target, **key)


def quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, target=torch.int8, **key):
    return ours.quantize_affine(x, (1, 32), scale, zero, target, **key)


def fake(x: Tensor, scale: Tensor, zero: Tensor | None = None, target=torch.int8, **key):
    return ours.fake_quantize_affine(x, (1, 32), scale, zero, target, **key)


X, S = torch.ones(4, 64), torch.ones(4, 2)
ERRORS = [
    (lambda: choose(X.double()), TypeError, "float64, expected float32.*input.float()"),
    (lambda: choose(X, (32,)), ValueError, r"1 entries, but the input has shape \(4, 64\)"),
    (lambda: choose(X, (1, 24)), ValueError, "24 does not divide dimension 1.*pad it to 72"),
    (lambda: choose(X, (1, 128)), ValueError, "pad it to 128"),
    (lambda: choose(X, (0, 64)), ValueError, "0 for dimension 0: use a positive size, or -1"),
    (lambda: choose(X, target=torch.uint16), ValueError, "uint16 has no codes: use"),
    (lambda: choose(X, quant_max=128), ValueError, "quant_max 128 do not fit"),
    (lambda: choose(X, quant_min=5, quant_max=5), ValueError, "quant_min < quant_max"),
    (lambda: choose(X, mapping="SYMMETRIC"), TypeError, "MappingType .*NO_CLIPPING_ERR, ASYMM"),
    (lambda: choose(X, scale_dtype=torch.float64), ValueError, "scale_dtype is torch.float64"),
    (
        lambda: choose(X, target=torch.uint8, zero_point_dtype=torch.int8),
        ValueError,
        "use torch.int32",
    ),
    (lambda: choose(X.half(), target=torch.int32), ValueError, "overflow torch.float16"),
    (lambda: choose(X, zero_point_domain=FLOAT), ValueError, "pass preserve_zero=False"),
    (lambda: choose(X, zero_point_domain=NONE), ValueError, "use a symmetric mapping"),
    (lambda: choose(X, mapping=SYMMETRIC, preserve_zero=False), ValueError, "needs .*ASYMMETRIC"),
    (
        lambda: choose(
            X, zero_point_domain=FLOAT, preserve_zero=False, zero_point_dtype=torch.int8
        ),
        ValueError,
        "zero_point_dtype in the FLOAT domain is torch.int8",
    ),
    (lambda: quantize(X, S.T), ValueError, r"\(2, 4\), but there are \(4, 2\) blocks"),
    (lambda: quantize(X, S[:1, :1]), ValueError, r"scale has shape \(1, 1\)"),
    (lambda: quantize(X, S, S[0]), ValueError, r"zero_point has shape \(2,\)"),
    (lambda: quantize(X, S.double()), TypeError, "scale is torch.float64"),
    (lambda: quantize(X, S, S.double()), TypeError, "zero_point is torch.float64"),
    (lambda: quantize(X, S, S, zero_point_domain=NONE), ValueError, "pass zero_point=None"),
    (
        lambda: quantize(X.half(), S.half(), target=torch.int32),
        ValueError,
        "overflow torch.float16",
    ),
    (lambda: fake(X.double(), S), TypeError, "input is torch.float64"),
    (lambda: fake(X, S.T), ValueError, r"scale has shape \(2, 4\), but there are \(4, 2\) blocks"),
    (lambda: fake(X, S, S, zero_point_domain=NONE), ValueError, "NONE has no zero point"),
    (lambda: fake(X, S, quant_min=3, quant_max=3), ValueError, "quant_min < quant_max in that"),
    (lambda: fake(X.half(), S.half(), target=torch.int32), ValueError, "-2147483648 .* overflow"),
    (
        lambda: ours.dequantize_affine(X.int(), (1, 32), S, None, torch.int8),
        TypeError,
        "int32, but input_dtype is torch.int8",
    ),
    (
        lambda: ours.dequantize_affine(X, (1, 32), S, None, torch.uint4),
        TypeError,
        "an integer dtype that holds",
    ),
    (
        lambda: ours.dequantize_affine(
            X.char(), (1, 32), S, None, torch.int8, output_dtype=torch.int8
        ),
        ValueError,
        "output_dtype is torch.int8",
    ),
    (
        lambda: ours.choose_qparams_affine_with_min_max(S, S.half(), SYMMETRIC, (1,), torch.int8),
        TypeError,
        "give both the same dtype",
    ),
    (
        lambda: ours.choose_qparams_affine_with_min_max(S, S[0], SYMMETRIC, (1,), torch.int8),
        ValueError,
        "give one of each for every block",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS, ids=[e[2] for e in ERRORS])
def test_errors_say_what_to_do(call, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
