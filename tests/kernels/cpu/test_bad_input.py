# SPDX-License-Identifier: BSD-3-Clause
"""What does not fit is refused with words, never read past its end."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.ops import primitives as P
from blockscale.ops.embedding import embedding
from tests.support import fresh

ROOT = Path(__file__).parents[3]
FMT, ASYM, TWO = "int4:group16:fp32", "int4:group16:fp32:asym", "e2m1:group16:e4m3"
DRAWN = f"{FMT}:stochastic"
X = torch.arange(240.0).reshape(6, 40) - 100
SCALE = torch.ones(6, 3)
CODES = torch.zeros(6, 20, dtype=torch.uint8)
ZERO = torch.zeros(6, 3, dtype=torch.int32)
ROWS = torch.tensor([0, 5])


def all_ops(scale, zero, outer, fmt, x=X, codes=CODES):
    """Every op that takes a scale, as calls to make."""
    return {
        "quantize": lambda: P.quantize(x, Quantizer(scale, zero, outer, fmt, None)),
        "fake_quantize": lambda: P.fake_quantize(x, Quantizer(scale, zero, outer, fmt, None)),
        "straight_through": lambda: P.straight_through(x, x, Quantizer(scale, zero, outer, fmt)),
        "dequantize": lambda: P.dequantize(
            Operand(codes, scale, zero, outer, fmt, 40), torch.float32
        ),
        "embedding": lambda: embedding(
            Operand(codes, scale, zero, outer, fmt, 40), ROWS, torch.float32
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_dtypes_of_x(dtype: torch.dtype) -> None:
    """As the reference does, also of tensors without elements."""
    name = str(dtype).removeprefix("torch.")
    for x in (X.to(dtype), X[:0].to(dtype)):
        scale = SCALE[: len(x)]
        calls = [lambda x=x: P.choose_qparams(x, FMT), lambda x=x: P.choose_quantize(x, FMT, None)]
        calls += [lambda x=x, s=scale: P.quantize(x, Quantizer(s, None, None, FMT, None))]
        calls += [lambda x=x: P.fake_quantize(x, Quantizer(None, None, None, FMT, None))]
        calls += [lambda x=x: P.straight_through(X[: len(x)], x, Quantizer(None, None, None, FMT))]
        calls += [lambda x=x: bs.quantize(x, FMT), lambda x=x: bs.fake_quantize(x, FMT)]
        for call in calls:
            words = f"expected float32, bfloat16 or float16, found {name}: convert it first"
            with bs.use("cpu"), pytest.raises(TypeError, match=words):
                call()


SHAPES = [(6, 2), (3, 6), (), (1, 6, 3), (6, 1), (1, 1), (18,), (7, 3), (0, 3), (6, 3, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_of_scales(shape: tuple[int, ...]) -> None:
    with bs.use("cpu"):
        for name, call in all_ops(torch.ones(shape), None, None, FMT).items():
            with pytest.raises(ValueError, match=r"int4:group16:fp32: (expected|codes of shape)"):
                pytest.fail(f"{name} gave {call()}")
        for name, call in all_ops(SCALE, torch.zeros(shape).int(), None, ASYM).items():
            with pytest.raises(ValueError, match=r"expected torch.int32 of shape \(6, 3\)"):
                pytest.fail(f"{name} gave {call()}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, torch.uint8])
def test_dtypes_of_scales(dtype: torch.dtype) -> None:
    words = rf"expected torch.float32 of shape \(6, 3\) on the CPU, found {dtype} of shape"
    for call in all_ops(SCALE.to(dtype), None, None, FMT).values():
        with bs.use("cpu"), pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize(
    ("fmt", "zero", "outer", "words"),
    [
        (FMT, ZERO, None, "expected a scale for blocks"),
        (FMT, None, SCALE, "expected a scale for blocks"),
        (ASYM, None, None, "expected a scale, a zero point for blocks"),
        (ASYM, ZERO.long(), None, "expected torch.int32 of shape"),
        (ASYM, ZERO.float(), None, "expected torch.int32 of shape"),
        (TWO, None, None, "expected a scale, an outer scale for blocks"),
        (TWO, None, torch.ones(2, 1), r"expected torch.float32 of shape \(1, 1\)"),
        (TWO, None, torch.ones(1, 1).half(), r"expected torch.float32 of shape \(1, 1\)"),
    ],
)
def test_parts(fmt: str, zero: Tensor | None, outer: Tensor | None, words: str) -> None:
    scale = SCALE.byte() if fmt == TWO else SCALE
    for call in all_ops(scale, zero, outer, fmt).values():
        with bs.use("cpu"), pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize(
    "codes", [CODES[:, :19], CODES[:5], CODES.int(), CODES[None], CODES[0], CODES.to(torch.int8)]
)
def test_codes(codes: Tensor) -> None:
    calls = all_ops(SCALE, None, None, FMT, codes=codes)
    with bs.use("cpu"):
        for name in ("dequantize", "embedding"):
            with pytest.raises(ValueError, match="int4:group16:fp32: "):
                pytest.fail(f"{name} gave {calls[name]()}")


@pytest.mark.parametrize("size", [-1, 0, 1, 38, 42, 10**12])
def test_sizes(size: int) -> None:
    with bs.use("cpu"):
        for call in (
            lambda: P.unpack(CODES, FMT, size),
            lambda: P.dequantize(Operand(CODES, SCALE, None, None, FMT, size), torch.float32),
            lambda: embedding(Operand(CODES, SCALE, None, None, FMT, size), ROWS, torch.float32),
        ):
            with pytest.raises(ValueError, match="codes of shape"):
                call()


def test_blocks_that_need_other_dimensions() -> None:
    for block, x in [("token", X[0, 0]), ("tile2x2", X[0]), ("channel2", X), ("group4@1", X[0])]:
        fmt = f"int4:{block}:fp32"
        with bs.use("cpu"):
            for call in (
                lambda x=x, fmt=fmt: P.choose_qparams(x, fmt),
                lambda x=x, fmt=fmt: P.choose_quantize(x, fmt, None),
                lambda x=x, fmt=fmt: P.fake_quantize(x, Quantizer(None, None, None, fmt, None)),
                lambda x=x, fmt=fmt: P.straight_through(x, x, Quantizer(None, None, None, fmt)),
                lambda x=x, fmt=fmt: P.quantize(x, Quantizer(SCALE, None, None, fmt, None)),
                lambda x=x, fmt=fmt: bs.quantize(x, fmt),
            ):
                with pytest.raises(ValueError, match=f"block '{block}' needs dimension"):
                    call()


def test_seeds() -> None:
    with bs.use("cpu"):
        for seed in (torch.tensor(1.0), torch.tensor([1, 2, 3]), torch.tensor([]).long()):
            with pytest.raises(ValueError, match=r"a seed is int64 of shape \[\] or \[2\]"):
                P.choose_quantize(X, DRAWN, seed)
        for x in (X, X[:0]):
            with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
                P.choose_quantize(x, DRAWN, None)
        with pytest.raises(ValueError, match="a seed tensor must be int64"):
            bs.quantize(X, DRAWN, seed=torch.tensor([1.0]))


@pytest.mark.parametrize("shape", [(), (40,), (2, 6, 40), (6, 1)], ids=str)
def test_gradients_of_another_shape(shape: tuple[int, ...]) -> None:
    with bs.use("cpu"), pytest.raises((RuntimeError, ValueError), match=r"shape|sizes"):
        P.straight_through(torch.ones(shape), X, Quantizer(None, None, None, FMT))


STRANGE = {
    "x on meta": "with bs.use('cpu'): r = bs.fake_quantize(x.to('meta'), F); assert r.is_meta",
    "a pinned backend": "with bs.use('cpu'): assert bs.quantize(x.to('meta'), F).shape == x.shape",
    "scale on meta": "refused(lambda: P.quantize(x, Q(s.to('meta'), None, None, F)))",
    "x of a gradient on meta": "refused(lambda: P.straight_through(x, x.to('meta'), Q(*N, F)))",
    "a gradient without storage": "assert not P.straight_through(zero, x, Q(*N, F)).any()",
    "x without storage": "assert not bs.fake_quantize(zero, F).any()",
    "mkldnn": "refused(lambda: bs.fake_quantize(x.to_mkldnn(), F))",
    "sparse": "refused(lambda: bs.fake_quantize(x.to_sparse(), F))",
    "csr": "refused(lambda: bs.fake_quantize(x.to_sparse_csr(), F))",
}
SCRIPT = f"""
import os, sys, traceback, warnings
import torch, blockscale as bs
from blockscale.core.operand import Quantizer as Q
from blockscale.ops import primitives as P
warnings.simplefilter("ignore")
F, N = {FMT!r}, (None, None, None)
x, s, zero = torch.randn(6, 40), torch.ones(6, 3), torch._efficientzerotensor(6, 40)
torch.set_num_threads(1)
bs.fake_quantize(x, F)
def refused(call):
    try: result = call()
    except (ValueError, TypeError, RuntimeError, NotImplementedError): return
    raise AssertionError(f"it gave {{result}}")
for name, code in {STRANGE!r}.items():
    child = os.fork()
    if not child:
        try: exec(code)
        except BaseException: traceback.print_exc(); os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status: print(name, os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
def test_tensors_without_memory() -> None:
    """Each in a process of its own, which a wrong address would end (-11)."""
    done = fresh.run(SCRIPT, cwd=ROOT, ready=fresh.WITH_OURS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
