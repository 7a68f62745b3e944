"""The shaders of products."""

from functools import cache

from blockscale.kernels.webgpu.gpu.shader import Constant, Shader
from blockscale.kernels.webgpu.matmul.plan import Plan


def product_shader(
    plan: Plan,
    choices: dict[str, str],
    constants: dict[str, Constant],
    dtype: str,
    bias: str,
    store: str,
) -> Shader:
    """That of a plan, for what a right factor chooses; dtype: of the left factor."""
    return Shader(
        f"matmul/{plan.kernel}",
        tuple((choices | {"float": dtype, "bias": bias, "store": store}).items()),
        tuple((constants | dict(plan.constants)).items()),
    )


@cache
def cast_shader(dtype: str) -> Shader:
    """float32 to a type of 16 bits."""
    return Shader("matmul/cast", (("float", dtype),))
