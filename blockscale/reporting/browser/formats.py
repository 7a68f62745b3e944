# SPDX-License-Identifier: BSD-3-Clause
"""What a page has to know of a format: its blocks as a matrix has them, and its shaders."""

from dataclasses import dataclass
from typing import Any

from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.scales import TwoLevel
from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.probe import EXACT
from blockscale.kernels.webgpu.gpu.shader import Kernel, Shader, assembled, source, tables
from blockscale.kernels.webgpu.spec import Coding, known, shader_of


@dataclass(frozen=True)
class BoxRanges(Kernel, part="kernels/boxes/ranges"):
    """What scales are chosen from. statistic: boxes/{statistic}"""

    coding: Coding
    statistic: str


@dataclass(frozen=True)
class BoxScales(Kernel, part="kernels/boxes/scales"):
    """The scale of each block."""

    coding: Coding


@dataclass(frozen=True)
class BoxCodes(Kernel, part="kernels/boxes/codes"):
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


def told(name: str, fmt: Format, texts: dict[str, int]) -> dict[str, Any]:
    """A format as plain data for the page.

    texts: the declarations of shaders that the page carries, and their numbers; more are added

    Raises ValueError if a page cannot show it.
    """
    reason = refusal(fmt)
    if reason is not None:
        raise ValueError(reason)
    block = (fmt.block.flat, fmt.block.flat) if fmt.block.flat else fmt.block.sizes_for(2)
    sizes = fmt.stored((4, 4))  # of which only dtypes count
    once = 8 * sizes["outer"][0].itemsize if "outer" in sizes else 0
    every = sum(8 * dtype.itemsize for part, (dtype, _) in sizes.items() if part != "outer")
    return {
        "name": name,
        "spelling": str(fmt),
        "bits": fmt.bits,
        "overhead": every,  # bits beside the codes of each block
        "once": once,  # and of each tensor
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
    given = tuple({**dict(constants), **dict(more)}.items())
    coding = Coding(roles, EXACT)
    kernels = BoxRanges(coding, statistic), BoxScales(coding), BoxCodes(coding)
    first, second, third = (Shader(kernel, given) for kernel in kernels)
    return first, second, third


def _plain(shader: Shader, texts: dict[str, int]) -> dict[str, Any]:
    """A shader as the page puts it together (shaders.js, `composed`)."""
    code, bindings = assembled(shader), source(shader, (), None).bindings
    return {
        "enabled": code.enabled,
        "constants": code.constants,
        "declarations": [texts.setdefault(each, len(texts)) for each in code.declarations],
        "tables": {name: list(words) for name, words in tables(shader).items() if name in bindings},
    }
