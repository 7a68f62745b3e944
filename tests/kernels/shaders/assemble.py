# SPDX-License-Identifier: BSD-3-Clause
"""Assembles the shaders of a table of calls, on a device that computes nothing.

    python -m tests.kernels.shaders.assemble nvidia intel … [--cases mxfp4 …] [--wide]
        [--texts FOLDER] [--record]

Writes {device: {case: digest of the code of its shaders}} as JSON. A case is a format with all ops,
or torch's ops on the device. --wide: more formats, dtypes and shapes; --texts: every text as a file
of its own, and the cases that it belongs to, for a diff with those of another commit; --record: the
digests take the place of these devices' in tests/recorded/shaders.json, whose changes are reviewed;
with --cases those of these cases alone.
"""

import argparse
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.kernels.shaders.device import KINDS, install, trust

OTHERS = (
    "int8:group32:fp32:recip", "int8:group32:fp32:nearest_away", "uint4:group16:e4m3:asym",
    "int4:group32:fp32:full", "int4:group32:fp16:signed", "int4:group32:fp32:half",
    "e2m1:group32:pow2/nearest", "e3m2:group16:pow2/tosa", "uint8:token:e8m0:asym",
    "int12:group24:e8m0", "binary:token:e8m0", "ternary:group16:bf16",
    "int8:group16:(e5m2:token:fp32)", "e2m1:group16:(e4m3:token:bf16)", "e2m1:group16:e4m3/inv",
    "uint4:group32:fp32:asym(fp16)", "uint4:tile2x16:bf16:asym(bf16)", "uint1:group32:fp32",
    "e4m3:group32:fp32:stochastic", "int4:group32:e8m0:stochastic", "int4:group32:fp32:down",
    "book(0.25,1):group32:fp32", "book(3,0.5,1,2):group16:bf16", "int8:group32@0:fp32",
    "uint4:group32:fp16:offset", "nf4:group64:fp32:offset", "int6:flat48:fp32",
    "int8:block2x3x2:fp32:asym", "int4:group32:fp32:up", "int4:group32:fp32:toward_zero",
    "e2m1:group32:pow2/even", "int8:group16:(uint8:tensor:fp32)", "e4m3:tile8x32:fp32",
    "int8:tile16x32:e8m0/floor", "log4:group32:e8m0/ceil", "iq4_nl:group32:fp16",
    "int8:group16:(nf4:tensor:fp32)", "e2m1:group32@0:e8m0/floor",
)  # fmt: skip
FEW = (
    "int8_channel", "uint4", "nf4", "ternary", "mxfp4", "nvfp4", "e4m3:group32:fp32:stochastic",
    "uint4:group32:fp16:offset", "int8:group32@0:fp32", "e2m1:group16:e4m3/inv",
)  # fmt: skip
RECORDED = pathlib.Path(__file__).parents[2] / "recorded/shaders.json"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
WIDE_SHAPES = ((4, 96), (2, 4, 3072), (96, 256), (7, 37), (300,), (4, 6, 8, 12))
Cases = Iterator[tuple[str, Callable[[], Any]]]


def formats(wide: bool) -> Cases:
    """Each format with every op that takes one."""
    from blockscale.core.parse import CATALOG

    for fmt in (*CATALOG, *OTHERS) if wide else FEW:
        yield fmt, lambda fmt=fmt: _every_op(fmt, wide)
    yield "page", lambda: _on_a_page(CATALOG if wide else FEW)


def _every_op(fmt: str, wide: bool) -> None:
    for dtype in FLOATS if wide else FLOATS[:2]:
        for shape in WIDE_SHAPES if wide else ((64, 256), (2, 3, 37)):
            with _unfit():
                _on_tensors(torch.ones(shape, dtype=dtype), fmt)
        with _unfit():
            _on_textures(torch.ones(2, 4, 6, 24, dtype=dtype), fmt)
        for rows in (1, 3, 40, 200) if wide else (1, 40):
            with _unfit():
                _products(torch.ones(rows, 256, dtype=dtype), fmt)
    _of_tests(fmt)


def _of_tests(fmt: str) -> None:
    """The kernels that only tests run."""
    from blockscale.kernels.webgpu.gpu.launch import pipeline_of
    from blockscale.kernels.webgpu.gpu.shader import source
    from tests.kernels.webgpu.wgsl.running import ProbeChoose, ProbeCode, shader

    for hardware in ("plain", "flushing"):
        for kernel in (ProbeCode, ProbeChoose):
            pipeline_of(source(shader(kernel, fmt, hardware), ("count",), None).text)


@contextmanager
def _unfit() -> Iterator[None]:
    """Blocks that do not fit a shape, and what no kernel knows, are left out."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        if "shader" in str(error):  # a part that is missing
            raise


def _on_tensors(x: Tensor, fmt: str) -> None:
    from blockscale.core.operand import Quantizer, operand, quantizer
    from blockscale.core.parse import parse
    from blockscale.ops import primitives as P

    form = parse(fmt)
    seed = torch.tensor([7, 3]) if form.rounding == "stochastic" else None
    for start in (seed, None if seed is None else torch.tensor([7, 4])):
        P.choose_quantize(x, fmt, start)
    P.fake_quantize(x, Quantizer(None, None, None, fmt, seed))
    P.straight_through(x, x, Quantizer(None, None, None, fmt))
    given = P.from_list(P.choose_qparams(x, fmt), form)
    packed = P.quantize(x, quantizer(given, fmt, seed))
    P.fake_quantize(x, quantizer(given, fmt, seed))
    P.straight_through(x, x, quantizer(given, fmt))
    for dtype in FLOATS:
        P.dequantize(operand(packed, given, fmt, x.shape[-1]), dtype)
    P.pack(P.unpack(packed, fmt, x.shape[-1]), fmt)


def _on_textures(x: Tensor, fmt: str) -> None:
    from blockscale.kernels.webgpu import textures

    t = textures.texture(x)
    q = textures.quantize(t, fmt, seed=torch.tensor(1) if "stochastic" in fmt else None)
    textures.dequantize(q, x.dtype)
    textures.fake_quantize(t, fmt, seed=torch.tensor(1) if "stochastic" in fmt else None)


def _products(x: Tensor, fmt: str) -> None:
    from blockscale.core.operand import Quantizer, operand
    from blockscale.core.parse import parse
    from blockscale.ops import primitives as P
    from blockscale.ops.embedding import embedding
    from blockscale.ops.linear import linear

    seed = torch.tensor([7, 3]) if parse(fmt).rounding == "stochastic" else None
    for outputs in (64, 33):
        packed, *parts = P.choose_quantize(torch.ones(outputs, x.shape[1]), fmt, seed)
        weight = operand(packed, P.from_list(parts, parse(fmt)), fmt, x.shape[1])
        linear(x, weight, None, Quantizer(None, None, None, "int8:token:fp32"))
        linear(x, weight, torch.ones(outputs, dtype=x.dtype))
    for kind in (torch.int64, torch.int32):
        embedding(weight, torch.zeros(5, dtype=kind), x.dtype)


def attention() -> Cases:
    """Attention over caches in codes, by each kind of mask, with and without sinks."""
    for name, count in (("few", 1), ("many", 3)):
        yield f"attention {name}", lambda count=count: _over_caches(count)


def _over_caches(new: int) -> None:
    from blockscale.core.operand import operand
    from blockscale.core.parse import parse
    from blockscale.ops import primitives as P
    from blockscale.ops.attention import cached_attention

    past, recent = torch.ones(1, 2, 300, 64), torch.ones(1, 2, 5, 64)
    masks = (None, torch.ones(1, 1, 1, 305, dtype=torch.bool), torch.zeros(1, 8, new, 305))
    for fmt in ("int8:token:fp32", "mxfp4", "e2m1:group16:(e4m3:token:fp32)",
                "uint4:group32:fp16:offset"):  # fmt: skip
        packed, *parts = P.choose_quantize(past, fmt, None)
        codes = operand(packed, P.from_list(parts, parse(fmt)), fmt, 64)
        for mask in masks:
            sinks = None if mask is None else torch.zeros(8)
            query = torch.ones(1, 8, new, 64, dtype=FLOATS[new % 2])
            cached_attention(query, codes, codes, recent, recent, mask, 0.125, sinks)


def torch_ops() -> Cases:
    """Torch's own ops on the device."""
    for dtype in FLOATS:
        yield f"torch {dtype}", lambda dtype=dtype: _on_floats(dtype)
    yield "torch integers", _on_integers
    yield "torch views", _on_views


def _on_floats(dtype: torch.dtype) -> None:
    device = _device()
    x = torch.ones(4, 6, dtype=dtype).to(device)
    y = torch.ones(6, dtype=dtype).to(device)
    for name in ("neg", "abs", "relu", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh",
                 "sigmoid", "erf", "isnan"):  # fmt: skip
        getattr(torch, name)(x)
        getattr(torch, name)(x.t())
    functions: Any = torch.nn.functional
    for name in ("silu", "gelu", "leaky_relu"):
        getattr(functions, name)(x)
    functions.gelu(x, approximate="tanh")
    functions.layer_norm(x, (6,), y, y)
    for made in (x.clamp(0, 1), x**2, x**0.5, x.softmax(-1), x.log_softmax(0), x @ x.t()):
        del made
    for name in ("add", "sub", "mul", "div"):
        getattr(torch, name)(x, y)
        getattr(torch, name)(x, 2.5)
    for name in ("maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"):
        getattr(torch, name)(x, y)
    for made in (x.sum(), x.sum(0), x.mean(1), x.amax(0), x.amin(), x.norm()):
        del made
    functions.linear(x, x, torch.ones(4, dtype=dtype).to(device))
    functions.scaled_dot_product_attention(*[x.view(1, 1, 4, 6)] * 3)
    torch.where(x > 0, x, y).masked_fill(x > 1, 0.0)
    for other in FLOATS:
        x.to(other)
        x.t().to(other)


def _on_integers() -> None:
    device = _device()
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        a = torch.ones(4, 6, dtype=dtype).to(device)
        for name in ("add", "mul", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum",
                     "minimum", "eq", "ne", "lt", "le", "gt", "ge"):  # fmt: skip
            getattr(torch, name)(a, a)
            getattr(torch, name)(a, a[0])
        if dtype != torch.bool:
            torch.sub(a, a)
            torch.sub(a, 3)
        a.to(torch.float32)
        torch.where(a == 1, a, a)


def _on_views() -> None:
    device = _device()
    for dtype in (torch.float32, torch.float16, torch.uint8, torch.int64):
        x = torch.ones(4, 6, dtype=dtype).to(device)
        x.t().contiguous()
        torch.cat([x, x], 1)
        torch.nn.functional.embedding(torch.zeros(3, dtype=torch.int32).to(device), x)
        x[torch.tensor([0, 1]).to(device)]
        x[1:, 2:].cpu()
        x.zero_()


def _device() -> torch.device:
    from blockscale.kernels.webgpu import webgpu

    return webgpu()


def _on_a_page(formats: Iterable[str]) -> None:
    """The shaders that a page in a browser assembles for itself."""
    from blockscale.core.parse import parse
    from blockscale.kernels.webgpu.gpu.launch import pipeline_of
    from blockscale.kernels.webgpu.gpu.shader import source
    from blockscale.reporting.browser import refusal, shaders

    sizes = ("rows", "columns", "block_rows", "block_columns", "across", "blocks")
    for fmt in map(parse, formats):
        if refusal(fmt) is None:
            for each in shaders(fmt):
                pipeline_of(source(each, sizes, None).text)


def probes() -> Cases:
    """What is asked of a device before it is trusted."""
    yield "probes", trust


def plain(text: str) -> str:
    """A shader without comments and empty lines."""
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"[ \t]*//.*", "", text)).strip()


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\n----\n".join(texts).encode()).hexdigest()[:16]


def assemble(kind: str, wide: bool, only: Sequence[str]) -> dict[str, list[str]]:
    """{case: the texts of its shaders, each once, sorted} on a device of this kind.

    In a process that knows no other device. only: these cases, if any
    """
    device = install(KINDS[kind])
    os.environ["BLOCKSCALE_WEBGPU_ARITHMETIC"] = KINDS[kind].arithmetic
    import blockscale as bs
    from blockscale.kernels.webgpu import available
    from blockscale.kernels.webgpu.gpu.launch import pipeline_of

    with warnings.catch_warnings(action="ignore"), bs.use("webgpu"):
        assert available() is None, available()
        found: dict[str, list[str]] = {}
        for name, call in itertools.chain(probes(), formats(wide), attention(), torch_ops()):
            if only and name not in (*only, "probes"):
                continue
            pipeline_of.cache_clear()
            device.texts.clear()
            call()
            found[name] = sorted({plain(text) for text in device.texts})
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--texts", type=pathlib.Path)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    import blockscale  # noqa: F401  (once, for all that are forked)

    run = functools.partial(assemble, wide=args.wide, only=args.cases)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        made = dict(zip(args.kinds, pool.map(run, args.kinds, chunksize=1), strict=True))
    if args.texts is not None:
        for kind, found in made.items():
            _write(args.texts, kind, found)
    digests = {
        kind: {name: digest(texts) for name, texts in found.items()} for kind, found in made.items()
    }
    if args.record:
        before = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
        if args.cases:
            digests = {kind: before[kind] | cases for kind, cases in digests.items()}
        RECORDED.write_text(json.dumps(before | digests, indent=1) + "\n")
    json.dump(digests, sys.stdout, indent=1)


def _write(folder: pathlib.Path, kind: str, found: dict[str, list[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for text in {text for texts in found.values() for text in texts}:
        (folder / f"{digest([text])}.wgsl").write_text(text + "\n")
    cases = {name: [digest([text]) for text in texts] for name, texts in found.items()}
    (folder / f"{kind}.json").write_text(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
