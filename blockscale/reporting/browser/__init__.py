# SPDX-License-Identifier: BSD-3-Clause
"""One page that quantizes in the visitor's browser, on the visitor's GPU, with our shaders.

It is one HTML file with shaders, formats, what the reference computed, style and scripts.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.scales import TwoLevel
from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.probe import EXACT
from blockscale.kernels.webgpu.gpu.shader import Shader, ShaderKernel, assemble, source, tables
from blockscale.kernels.webgpu.spec import Coding, known, shader_of

# What a page has to know of a format: its blocks as a matrix has them, and its shaders.


@dataclass(frozen=True)
class BoxRanges(ShaderKernel, part="kernels/boxes/ranges"):
    """What scales are chosen from. statistic: boxes/{statistic}"""

    coding: Coding
    statistic: str


@dataclass(frozen=True)
class BoxScales(ShaderKernel, part="kernels/boxes/scales"):
    """The scale of each block."""

    coding: Coding


@dataclass(frozen=True)
class BoxCodes(ShaderKernel, part="kernels/boxes/codes"):
    """The code of each number, and its value."""

    coding: Coding


def refusal(fmt: Format) -> str | None:
    """Why a page cannot show a format, or None."""
    if fmt.rounding == "stochastic":
        return f"{fmt}: a page shows codes that do not depend on chance; leave 'stochastic' out"
    if fmt.unchosen:
        return f"{fmt}: {fmt.unchosen}"
    if isinstance(fmt.scale, TwoLevel) and fmt.scale.inner.block.name != "tensor":
        return f"{fmt}: a page knows scales of two levels with one outer scale"
    if fmt.block.strided:
        return f"{fmt}: a page's blocks lie together"
    return None if known((fmt,), ()) else f"{fmt} has no shaders"


def format_data(name: str, fmt: Format, texts: dict[str, int]) -> dict[str, Any]:
    """A format as plain data for the page.

    texts: the declarations of shaders that the page carries, and their numbers; more are added

    Raises ValueError if a page cannot show it.
    """
    reason = refusal(fmt)
    if reason is not None:
        raise ValueError(reason)
    block = (fmt.block.flat, fmt.block.flat) if fmt.block.flat else fmt.block.sizes_for(2)
    sizes = fmt.stored((4, 4))  # of which only dtypes count
    per_tensor = 8 * sizes["outer"][0].itemsize if "outer" in sizes else 0
    every = sum(8 * dtype.itemsize for part, (dtype, _) in sizes.items() if part != "outer")
    return {
        "name": name,
        "spelling": str(fmt),
        "bits": fmt.bits,
        "overhead": every,  # bits beside the codes of each block
        "once": per_tensor,  # and of each tensor
        "asym": fmt.asym,
        "flat": bool(fmt.block.flat),
        "block": [None if size == WHOLE else size for size in block],
        "shaders": {
            step: _plain(shader, texts)
            for step, shader in zip(("ranges", "scales", "codes"), shaders(fmt), strict=True)
        },
    }


def shaders(fmt: Format) -> tuple[Shader, Shader, Shader]:
    """What finds ranges, chooses scales and makes codes, one invocation a block or a number."""
    numbers = lowered(fmt)
    roles, constants = shader_of(fmt)
    statistic = "mean" if numbers.statistic in ("mean", "mean_above") else "range"
    more = (
        ("BARE", fmt.offset is not None),
        ("ABOVE", numbers.statistic == "mean_above"),
        ("POISONS", numbers.poisons),
    )
    settings = tuple({**dict(constants), **dict(more)}.items())
    coding = Coding(roles, EXACT)
    kernels = BoxRanges(coding, statistic), BoxScales(coding), BoxCodes(coding)
    first, second, third = (Shader(kernel, settings) for kernel in kernels)
    return first, second, third


def _plain(shader: Shader, texts: dict[str, int]) -> dict[str, Any]:
    """A shader as the page puts it together (shaders.js, `composed`)."""
    code, bindings = assemble(shader), source(shader, (), None).bindings
    return {
        "enabled": code.enabled,
        "constants": code.constants,
        "declarations": [texts.setdefault(each, len(texts)) for each in code.declarations],
        "tables": {name: list(words) for name, words in tables(shader).items() if name in bindings},
    }


# The page as one HTML file: shaders, formats, what the reference computed, style and scripts.

_SCRIPTS = ("shaders.js", "quantizing.js", "files.js", "view.js", "app.js")
_GRIDS = (
    ("numbers", "Numbers", "as they came, blue below 0 and orange above"),
    ("values", "Values", "that their codes mean"),
    ("errors", "Errors", "value minus number, strongest where they are largest"),
    ("codes", "Codes", "as unsigned bits, dark is 0"),
)


def page(formats: Mapping[str, Format], version: str) -> str:
    """HTML that needs nothing else.

    formats: by the name that the page shows; the first one, or mxfp4, is chosen when it opens
    version: of blockscale, for the foot of the page
    Raises ValueError for no formats, or one that a page cannot show.
    """
    if not formats:
        raise ValueError("the page has no formats: name at least one, such as mxfp4")
    from jinja2 import Environment

    texts: dict[str, int] = {}
    data: dict[str, list[Any]] = {
        "formats": [format_data(name, fmt, texts) for name, fmt in formats.items()],
        "declarations": list(texts),
        "checks": [check(name, fmt) for name, fmt in formats.items()],
    }
    environment = Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    return environment.from_string(_text("page.html.jinja")).render(
        style=_text("style.css"),
        scripts=[_text(name) for name in _SCRIPTS],
        # "</script>" and "<!--" in a string would end the script that it stands in, or hide its end
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        grids=_GRIDS,
        checks=len(data["checks"]),
        version=version,
    )


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


# What the reference computes, for the page to compare with: small tensors with hard numbers.


ROWS, COLUMNS = 6, 150  # blocks of 32, 64 and 128 end within a row


def check(name: str, fmt: Format) -> dict[str, Any]:
    """A tensor, and its codes, values and scales by the reference, as base64 of 32-bit words."""
    x = numbers(fmt)
    blocked = x.reshape(1, -1) if fmt.block.flat else x
    parts = reference.choose_qparams(blocked, fmt)
    codes = reference.quantize(blocked, parts, fmt)
    values = reference.dequantize(codes, parts, fmt, torch.float32)
    return {
        "format": name,
        "rows": ROWS,
        "columns": COLUMNS,
        "x": _as_text(x),
        "codes": _as_text(fmt.element.to_bits(codes).to(torch.int32)),
        "values": _as_text(values),
        "scales": _as_text(stored_bits(parts.scale)),
    }


def numbers(fmt: Format) -> Tensor:
    """Float32 [ROWS, COLUMNS] that ask much of a format: ties, subnormals, huge ones, zeros.

    Non-finite numbers come where they do not make everything NaN, in the last row of formats whose
    scales do not say so.
    """
    random = torch.Generator().manual_seed(14)
    x = torch.randn(ROWS, COLUMNS, generator=random)
    x[1] *= torch.exp2(torch.randint(-140, 100, (COLUMNS,), generator=random).float())
    x[2] = torch.arange(COLUMNS) / 4 - 10  # ties of many formats
    x[3, ::3] = 0.0
    x[3, 1::3] = -0.0
    x[4] *= 1e-40
    if not fmt.scale.poisons:
        x[5, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    if fmt.block.name in ("tensor", "channel0") or fmt.block.flat > COLUMNS:
        x[1].clamp_(-4, 4)  # one huge number would make zeros of all others
    return x


def stored_bits(scale: Tensor) -> Tensor:
    """The bits of scales as int32: floats of 16 bits widened, codes as they are."""
    if scale.is_floating_point():
        return scale.to(torch.float32).view(torch.int32)
    return scale.to(torch.int32)


def _as_text(tensor: Tensor) -> str:
    words = tensor.contiguous().reshape(-1)
    words = torch.where(words.isnan(), torch.nan, words) if words.is_floating_point() else words
    return base64.b64encode(words.view(torch.int32).numpy().tobytes()).decode()
