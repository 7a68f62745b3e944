# SPDX-License-Identifier: BSD-3-Clause
"""Every primitive on given arguments, and whether the WebGPU kernels give the reference's bits."""

from collections.abc import Sequence

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from tests.support.encoded import Results, by_reference, choosing, encoding
from tests.support.same import same

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def hard(shape: tuple[int, ...], dtype: torch.dtype, finite: bool = False) -> Tensor:
    """Numbers of all exponents, ties, zeros of both signs, subnormals, and what is not finite."""
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(count)
    word = torch.int32 if dtype == torch.float32 else torch.int16
    ends = torch.iinfo(word)
    anything = torch.randint(ends.min, ends.max, (count,), generator=generator, dtype=word)
    x = anything.view(dtype).clone()
    normal = torch.randn(count, generator=generator).to(dtype)
    ties = (torch.arange(count) % 61 / 4 - 7.5).to(dtype)
    part = count // 4 + 1
    x[:part], x[part : 2 * part] = normal[:part], ties[part : 2 * part]
    x[-5:] = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 0.5]).to(dtype)[: count and 5][-count:]
    if finite:
        x = torch.where(x.isfinite(), x, torch.ones((), dtype=dtype))
    return x.reshape(shape)


def decoding(
    packed: Tensor, fmt: str, given: QParams, size: int, dtypes: Sequence[torch.dtype]
) -> Results:
    """What the ops make of packed codes."""
    by = operand(packed, given, fmt, size)
    return {f"dequantize {dtype}": P.dequantize(by, dtype) for dtype in dtypes}


def packing(packed: Tensor, codes: Tensor | None, fmt: str, size: int) -> Results:
    """Codes, if there are dimensions, packed and unpacked."""
    if codes is None:
        return {}
    return {"unpack": P.unpack(packed, fmt, size), "pack": P.pack(codes, fmt)}


def wrong(
    x: Tensor,
    fmt: str,
    seed: Tensor | None = None,
    given: QParams | None = None,
    decodes: Sequence[torch.dtype] = (),
) -> list[str]:
    """Names of the results whose bits differ from the reference's.

    given: what takes a scale takes this one, not that of x; decodes: the dtypes of dequantize.
    """
    form = parse(fmt)
    seed = torch.tensor([7, 3]) if seed is None and form.rounding == "stochastic" else seed
    size = x.shape[-1] if x.ndim else 1
    decodes = decodes or (x.dtype,)
    given, expected = by_reference(x, fmt, seed, given)
    packed = expected["quantize"]
    with bs.use("reference"):
        codes = P.unpack(packed, fmt, size) if x.ndim else None
        expected |= decoding(packed, fmt, given, size, decodes)
        expected |= packing(packed, codes, fmt, size)
    with bs.use("webgpu"):
        found = choosing(x, fmt, seed) | encoding(x, fmt, given, seed)
        found |= decoding(packed, fmt, given, size, decodes)
        found |= packing(packed, codes, fmt, size)
    assert found.keys() == expected.keys()
    return [name for name, tensor in found.items() if not same(tensor, expected[name])]
