# SPDX-License-Identifier: BSD-3-Clause
"""The shaders of products."""

from functools import cache

import torch

from blockscale.kernels.webgpu.gpu.shader import Constant, Shader
from blockscale.kernels.webgpu.matmul.plan import Plan
from blockscale.kernels.webgpu.spec import STORAGE

_SCALES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def storage(dtype: torch.dtype) -> int:
    """How numbers of a dtype are stored, as bits/storage has it."""
    return STORAGE[_SCALES[dtype]]


def product_shader(
    plan: Plan,
    choices: dict[str, str],
    constants: dict[str, Constant],
    left: torch.dtype,
    bias: torch.dtype | None,
    result: torch.dtype,
) -> Shader:
    """That of a plan, for what a right factor chooses, and these dtypes."""
    stored: dict[str, Constant] = {
        "LEFT_STORAGE": storage(left),
        "BIAS_STORAGE": 0 if bias is None else storage(bias),
        "RESULT_STORAGE": storage(result),
    }
    return Shader(
        f"kernels/matmul_{plan.kernel}",
        tuple((choices | {"bias": "none" if bias is None else "added"}).items()),
        tuple((constants | stored | dict(plan.constants)).items()),
    )


@cache
def cast_shader(dtype: torch.dtype) -> Shader:
    """float32 to a type of 16 bits."""
    return Shader("kernels/cast", (), (("RESULT_STORAGE", storage(dtype)),))


def rows_shader(
    choices: dict[str, str],
    constants: dict[str, Constant],
    indices: torch.dtype,
    result: torch.dtype,
) -> Shader:
    """Rows of a table, for what it chooses as a right factor, and these dtypes."""
    stored = {"INDEX_WORDS": indices.itemsize // 4, "RESULT_STORAGE": storage(result)}
    return Shader("kernels/table_rows", tuple(choices.items()), tuple((constants | stored).items()))
