# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/webgpu/test_textures.py: `differing`, `hard`.
"""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.kernels.webgpu import textures
from tests.kernels.webgpu.here import here
from tests.support.same import same

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def hard(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers of every size, ties, zeros, subnormals, and what is not finite."""
    made = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=made)
    kind = torch.rand(shape, generator=made)
    x = torch.where(kind < 0.25, torch.round(x * 8) / 2, x)
    x = torch.where(kind > 0.9, x * 2.0**-140, x)
    special = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 3e38, 2.0**-149, 448.0])
    rare = special[torch.randint(0, 8, shape, generator=made)]
    return torch.where(kind > 0.97, rare, x).to(dtype)


def differing(fmt: str, shape: tuple[int, ...], dtype: torch.dtype) -> list[str]:
    """Names of the results whose bits are not the reference's."""
    form, x = parse(fmt), hard(shape, dtype)
    seed = torch.tensor([2**40 + 7, 3]) if form.rounding == "stochastic" else None
    parts = reference.choose_qparams(x, form)
    codes = reference.quantize(x, parts, form, seed)
    packed = packing.pack(codes, form.element)
    values = {d: reference.dequantize(codes, parts, form, d) for d in DTYPES}
    source = textures.texture(x)
    q = textures.quantize(source, fmt, parts, seed)
    own = textures.quantize(source, fmt, seed=seed)
    found = {
        "codes": (q.codes.tensor(), packed),
        "codes, scale chosen": (own.codes.tensor(), packed),
        "round trip": (textures.fake_quantize(source, fmt, parts, seed).tensor(), values[dtype]),
        "round trip, scale chosen": (
            textures.fake_quantize(source, fmt, seed=seed).tensor(), values[dtype]
        ),
    }  # fmt: skip
    for name, part in parts._asdict().items():
        if part is not None:
            found[name] = here(getattr(own.qparams, name)), part
    for to, value in values.items():
        found[f"values {to}"] = textures.dequantize(q, to).tensor(), value
    return [name for name, (a, b) in found.items() if not same(a, b)]
