# SPDX-License-Identifier: BSD-3-Clause
"""Elements that no kernel knows: every op runs on the reference, and says so once."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.kernels import registry
from blockscale.ops import primitives as P
from blockscale.ops.conv import conv
from blockscale.ops.embedding import embedding
from blockscale.ops.linear import linear
from tests.kernels.codebook import registered
from tests.support.same import same

# an own family, a subclass of a known one, and one whose scales' own codes are unknown, too: known
# codes under such scales are restated (tests/kernels/test_restate.py)
FORMATS = ("made4:group16:fp32", "twice4:token:bf16", "twice4:group16:(utwice4:tensor:fp32)")
KNOWN = "int8:token:fp32"
BACKENDS = ("cpu", "cuda")  # without a GPU, Triton's interpreter runs the latter

Call = Callable[[], Tensor | list[Tensor]]


@pytest.fixture(autouse=True)
def _codebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_warned", set())
    with registered():
        yield


def stored(x: Tensor, fmt: str) -> Operand:
    """x in a format, by the reference."""
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(x, fmt, None)
    scale, outer, zero = P.from_list(parts, parse(fmt))[:3]
    return Operand(packed, scale, zero, outer, fmt, x.shape[-1])


def calls(fmt: str) -> dict[str, Call]:
    """Each op, with the format wherever it takes one."""
    g = torch.Generator().manual_seed(1)
    x, images = torch.randn(6, 32, generator=g), torch.randn(2, 16, 5, generator=g)
    weight, plain = stored(x, fmt), stored(x, KNOWN)
    kernels, plain_kernels = stored(x[:, :16], fmt), stored(x[:, :16], KNOWN)
    given = Quantizer(weight.scale, weight.zero_point, weight.outer, fmt)
    chosen = Quantizer(None, None, None, fmt)
    codes = P.unpack.reference(weight.codes, fmt, 32)
    at = ([6, 16, 1], [1], [0], [1], 1)
    return {
        "choose_qparams": lambda: P.choose_qparams(x, fmt),
        "choose_quantize": lambda: P.choose_quantize(x, fmt, None),
        "quantize": lambda: P.quantize(x, given),
        "fake_quantize": lambda: P.fake_quantize(x, chosen),
        "fake_quantize, given": lambda: P.fake_quantize(x, given),
        "straight_through": lambda: P.straight_through(x, x, chosen),
        "dequantize": lambda: P.dequantize(weight, torch.float32),
        "pack": lambda: P.pack(codes, fmt),
        "unpack": lambda: P.unpack(weight.codes, fmt, 32),
        "linear, weight": lambda: linear(x, weight),
        "linear, input": lambda: linear(x, plain, None, chosen),
        "conv, weight": lambda: conv(images, kernels, None, *at),
        "conv, input": lambda: conv(images, plain_kernels, None, *at, chosen),
        "embedding": lambda: embedding(weight, torch.tensor([5, 0]), torch.float32),
    }


def bits_differ(found: Tensor | list[Tensor], expected: Tensor | list[Tensor]) -> bool:
    if isinstance(found, Tensor) or isinstance(expected, Tensor):
        return not same(found, expected)
    pairs = zip(found, expected, strict=True)
    return any(not same(a, b) for a, b in pairs)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_reference_runs(fmt: str) -> None:
    """With its bits, and one warning for an op and a format however often it is called."""
    for name, call in calls(fmt).items():
        registry._warned.clear()
        with bs.use("reference"):
            expected = call()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(2):
                assert not bits_differ(call(), expected), name
        words = [str(each.message) for each in warned]
        op = name.partition(",")[0]
        own = [each for each in words if each.startswith(f"no cpu kernel runs {op} for ")]
        assert len(own) == 1 and fmt in own[0], (name, words)
        assert len(set(words)) == len(words), name  # others are of ops that a reference calls


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_that_must_run_it_refuses(backend: str, fmt: str) -> None:
    if (reason := registry.unavailable(backend)) is not None:
        pytest.skip(reason)
    for name, call in calls(fmt).items():
        op = name.partition(",")[0]
        with bs.use(backend), pytest.raises(RuntimeError, match=f"no {backend} kernel runs {op}"):
            pytest.fail(f"{name} gave {call()}")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_that_is_preferred_gives_way(backend: str, fmt: str) -> None:
    if (reason := registry.unavailable(backend)) is not None:
        pytest.skip(reason)
    for name, call in calls(fmt).items():
        with bs.use("reference"):
            expected = call()
        with bs.use(backend, fallback=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert not bits_differ(call(), expected), name
