# SPDX-License-Identifier: BSD-3-Clause
"""The page as one HTML file: shaders, formats, what the reference computed, style and scripts."""

import base64
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.reporting.browser.formats import told

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
        raise ValueError("a page needs at least one format")
    from jinja2 import Environment

    texts: dict[str, int] = {}
    data: dict[str, list[Any]] = {
        "formats": [told(name, fmt, texts) for name, fmt in formats.items()],
        "declarations": list(texts),
        "checks": [check(name, fmt) for name, fmt in formats.items()],
    }
    made = Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    return made.from_string(_text("page.html.jinja")).render(
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
        "x": _written(x),
        "codes": _written(fmt.element.to_bits(codes).to(torch.int32)),
        "values": _written(values),
        "scales": _written(stored(parts.scale)),
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


def stored(scale: Tensor) -> Tensor:
    """The bits of scales as int32: floats of 16 bits widened, codes as they are."""
    if scale.is_floating_point():
        return scale.to(torch.float32).view(torch.int32)
    return scale.to(torch.int32)


def _written(tensor: Tensor) -> str:
    words = tensor.contiguous().reshape(-1)
    words = torch.where(words.isnan(), torch.nan, words) if words.is_floating_point() else words
    return base64.b64encode(words.view(torch.int32).numpy().tobytes()).decode()
