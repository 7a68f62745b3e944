# SPDX-License-Identifier: BSD-3-Clause
"""The shaders of products."""

from dataclasses import dataclass
from functools import cache

import torch

from blockscale.kernels.webgpu.gpu.probe import EXACT, Device
from blockscale.kernels.webgpu.gpu.shader import Constant, Kernel, Roles, Shader
from blockscale.kernels.webgpu.matmul.plan import Plan
from blockscale.kernels.webgpu.primitives.form import Stored
from blockscale.kernels.webgpu.spec import STORAGE, FormatRoles

_SCALES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class RightRoles(Roles):
    """The roles of products' parts that the right factor fills.

    right:     "codes", of a format and with what stands beside them, or "floats"
    decode:    how elements are decoded, matmul/decode/{decode}
    chunk:     how few rows of the left factor read codes
    fast_step: how steps are made of stored scales, matmul/step/{fast_step}
    """

    right: str
    device: Device = EXACT
    format: FormatRoles | None = None
    stored: Stored | None = None
    decode: str | None = None
    chunk: str | None = None
    fast_step: str | None = None


@dataclass(frozen=True)
class FewRows(Kernel, part="kernels/matmul_few_rows"):
    """Products with few rows. bias: "added" or "none" """

    right: RightRoles
    bias: str


@dataclass(frozen=True)
class ManyRows(FewRows, part="kernels/matmul_many_rows"):
    """Products with many rows."""


@dataclass(frozen=True)
class TableRows(Kernel, part="kernels/table_rows"):
    """Rows of a table."""

    right: RightRoles


KERNELS = {"few_rows": FewRows, "many_rows": ManyRows}


def storage(dtype: torch.dtype) -> int:
    """How numbers of a dtype are stored, as bits/storage has it."""
    return STORAGE[_SCALES[dtype]]


def product_shader(
    plan: Plan,
    right: RightRoles,
    constants: dict[str, Constant],
    left: torch.dtype,
    bias: torch.dtype | None,
    result: torch.dtype,
) -> Shader:
    """That of a plan, for a right factor, and these dtypes."""
    stored: dict[str, Constant] = {
        "LEFT_STORAGE": storage(left),
        "BIAS_STORAGE": 0 if bias is None else storage(bias),
        "RESULT_STORAGE": storage(result),
    }
    kernel = KERNELS[plan.kernel](right, "none" if bias is None else "added")
    return Shader(kernel, tuple((constants | stored | dict(plan.constants)).items()))


@cache
def cast_shader(dtype: torch.dtype) -> Shader:
    """float32 to a type of 16 bits."""
    return Shader("kernels/cast", (("RESULT_STORAGE", storage(dtype)),))


def rows_shader(
    right: RightRoles,
    constants: dict[str, Constant],
    indices: torch.dtype,
    result: torch.dtype,
) -> Shader:
    """Rows of a table, which is a right factor, and these dtypes."""
    stored = {"INDEX_WORDS": indices.itemsize // 4, "RESULT_STORAGE": storage(result)}
    return Shader(TableRows(right), tuple((constants | stored).items()))
