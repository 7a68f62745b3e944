# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/webgpu/primitives/test_one_pass.py: `FULL`, `HALF`, `OTHER`, ….
"""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.primitives import plan
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.plan import Lines, Settings
from blockscale.ops import primitives as P
from tests.kernels.webgpu.equal import hard
from tests.support.same import same

FULL, HALF, OTHER = torch.float32, torch.bfloat16, torch.float16


ROWS, TILES = "int8:token:fp32", "int8:tile32x32:fp32"


def seed_of(fmt: str, first: int = 4) -> torch.Tensor | None:
    return torch.tensor([7, first]) if parse(fmt).rounding == "stochastic" else None


def made(x: torch.Tensor, fmt: str, what: str, first: int = 4) -> list[torch.Tensor]:
    """What an op makes of numbers."""
    seed = seed_of(fmt, first)
    if what == "values":
        return [P.fake_quantize(x, Quantizer(None, None, None, str(parse(fmt)), seed))]
    return P.choose_quantize(x, str(parse(fmt)), seed)


def right(x: torch.Tensor, fmt: str, what: str, first: int = 4) -> bool:
    """Whether that is what the reference makes of them."""
    with bs.use("reference"):
        expected = made(x, fmt, what, first)
    with bs.use("webgpu"):
        found = made(x, fmt, what, first)
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


def unruly(blocks: int, block: int, dtype: torch.dtype) -> torch.Tensor:
    """Blocks [blocks, block] of zeros, tiny, huge and no numbers, one kind each; ties; and all
    of that together."""
    x = hard((blocks, block), dtype)
    plain = torch.randn(block, generator=torch.Generator().manual_seed(2)).to(dtype)
    x[1::8], x[2::16], x[10::16] = plain, 0.0, -0.0
    x[3::8] = (torch.arange(block) % 31 / 4 - 3.75).to(dtype)
    x[4::16] = plain * torch.tensor(1e-30).to(dtype)
    x[12::16] = plain * torch.tensor(1e-25).to(dtype)
    x[5::8] = plain * torch.tensor(1e30).to(dtype)
    x[6::8] = plain * torch.tensor(2e-39).to(dtype)
    x[7::16, block // 2], x[15::16, -1] = torch.inf, torch.nan
    return x


def planned(fmt: str, x: torch.Tensor, what: str, wanted: Settings | None = None) -> Lines | None:
    return plan.lines(form(str(parse(fmt))), x.dtype, tuple(x.shape), what, wanted)


def reach_of(monkeypatch: pytest.MonkeyPatch, neighbours: int) -> None:
    monkeypatch.setattr(plan, "reach", lambda: neighbours)
