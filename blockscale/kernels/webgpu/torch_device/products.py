"""Products of matrices of floats, of any strides: sums are float32's."""

from typing import Any

import torch

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.torch_device.copies import FLOATS, fresh, narrowed
from blockscale.kernels.webgpu.torch_device.elementwise import binary
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor

_TILE = 64


def product(a: WebGPUTensor, b: WebGPUTensor) -> Any:
    """[batches, m, k] x [batches, k, n] -> [batches, m, n] in float32."""
    (batches, m, k), n = a.shape, b.shape[2]
    if b.shape[:2] != (batches, k):
        raise RuntimeError(
            f"matrices of {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied"
        )
    made = fresh((batches, m, n), torch.float32)
    if k == 0:
        return made.zero_()
    flags = (("A_IN_ROWS", _in_rows(a)), ("B_IN_ROWS", _in_rows(b)))
    sizes = {"batches": batches, "m": m, "n": n, "k": k, **_places("a", a), **_places("b", b)}
    groups = batches * -(-m // _TILE) * -(-n // _TILE)
    shader = Shader("torch/kernels/matmul", (("float", FLOATS[a.dtype]),), flags)
    buffers = {"a": a.memory, "b": b.memory, "result": made.memory}
    launch(shader, buffers, sizes, groups, baked=False)
    return made


def _in_rows(x: WebGPUTensor) -> bool:
    """Whether neighbours in a row lie side by side."""
    return x.stride()[2] <= x.stride()[1]


def _places(name: str, x: WebGPUTensor) -> dict[str, int]:
    batch, row, column = x.stride()
    return {
        f"{name}_start": int(x.storage_offset()),
        f"{name}_batch": batch,
        f"{name}_row": row,
        f"{name}_column": column,
    }


def _refused(*matrices: WebGPUTensor) -> bool:
    return any(x.dtype not in FLOATS or x.dtype != matrices[0].dtype for x in matrices)


@handles("bmm.default")
def bmm(a: WebGPUTensor, b: WebGPUTensor) -> Any:
    """A product for each of a batch."""
    return NotImplemented if _refused(a, b) else narrowed(product(a, b), a.dtype)


@handles("mm.default")
def mm(a: WebGPUTensor, b: WebGPUTensor) -> Any:
    """One product."""
    if _refused(a, b):
        return NotImplemented
    made: Any = product(a.unsqueeze(0), b.unsqueeze(0))  # type: ignore[arg-type]
    return narrowed(made, a.dtype).squeeze(0)


@handles("addmm.default")
def addmm(c: Any, a: WebGPUTensor, b: WebGPUTensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta c + alpha a b."""
    if _refused(a, b):
        return NotImplemented
    made = product(a.unsqueeze(0), b.unsqueeze(0)).squeeze(0)  # type: ignore[arg-type]
    return _added(c, made, a.dtype, beta, alpha)


@handles("baddbmm.default")
def baddbmm(c: Any, a: WebGPUTensor, b: WebGPUTensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta c + alpha a b for each of a batch."""
    return NotImplemented if _refused(a, b) else _added(c, product(a, b), a.dtype, beta, alpha)


def _added(c: Any, made: Any, dtype: torch.dtype, beta: float, alpha: float) -> Any:
    """In float32, until it is rounded once."""
    if alpha != 1:
        made = binary("mul", made, alpha)
    if beta != 0:
        made = binary("add", made, c if beta == 1 else binary("mul", c, beta))
    return narrowed(made, dtype)


@handles("_fused_sdp_choice.default")
def attention(*_: Any, **__: Any) -> int:
    """Attention is made of products and softmax (torch's SDPBackend.MATH)."""
    return 0
