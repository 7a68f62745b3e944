"""The primitives on tensors in textures: the same bits as in buffers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.operand import Operand, operand
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS, QParams
from blockscale.kernels.webgpu.gpu.launch import Bound, launch
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader
from blockscale.kernels.webgpu.gpu.texels import COMPONENTS
from blockscale.kernels.webgpu.primitives.choices import given
from blockscale.kernels.webgpu.primitives.form import DTYPES, Form, form
from blockscale.kernels.webgpu.primitives.geometry import geometry
from blockscale.kernels.webgpu.spec import known, shader_of
from blockscale.kernels.webgpu.textures.layout import BlockGrid, block_grid, layout
from blockscale.kernels.webgpu.textures.local_size import Three, local_size
from blockscale.kernels.webgpu.textures.texture import Texture, empty

_NAMES = ("width", "height", "channels", "batch")


@dataclass(frozen=True, eq=False)
class QuantizedTexture:
    """Codes in a texture, and what stands beside them in buffers.

    codes:   one a component, as bit patterns
    qparams: the scale of each block and what else the format has
    """

    codes: Texture
    qparams: QParams
    fmt: Format

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""
        return self.codes.shape

    def operand(self, device: str | torch.device = "cpu") -> Operand:
        """The same with packed codes in linear memory, as ops take it."""
        size = self.shape[-1] if self.shape else 1
        return operand(self.codes.tensor(device), self.qparams, self.fmt, size)


def quantize(
    x: Texture, fmt: Format | str, qparams: QParams, seed: Tensor | None = None
) -> QuantizedTexture:
    """Numbers -> codes, with a given scale (docs/numerics.md, section 4).

    seed: int64 [] or [2] (seed, index of the first element), for stochastic rounding

    Raises TypeError for a texture that holds no floats and for a format that shaders do not know,
    ValueError for a scale or a seed that does not fit.
    """
    f = _known(fmt)
    made = empty(x.shape, f.bits, tuple(f.packed_shape(x.shape)), f.packed_dtype)
    _map("quantize", _floats(x), made, f, qparams, seed)
    return QuantizedTexture(made, qparams, f.format)


def dequantize(q: QuantizedTexture, dtype: torch.dtype = torch.float32) -> Texture:
    """Codes -> values of float32, bfloat16 or float16 (docs/numerics.md, section 5)."""
    f = _known(q.fmt)
    if dtype not in FLOATS:
        raise TypeError(f"textures hold values of float32, bfloat16 or float16, not {dtype}")
    made = empty(q.shape, 8 * dtype.itemsize, q.shape, dtype)
    _map("dequantize", q.codes, made, f, q.qparams, None)
    return made


def fake_quantize(
    x: Texture, fmt: Format | str, qparams: QParams, seed: Tensor | None = None
) -> Texture:
    """Numbers -> what is left of them after a round trip, in their dtype. Raises as `quantize`."""
    f = _known(fmt)
    made = empty(x.shape, x.bits, x.shape, x.dtype)
    _map("fake_quantize", _floats(x), made, f, qparams, seed)
    return made


def _known(fmt: Format | str) -> Form:
    parsed = parse(fmt)
    if not known((parsed,), ()):
        raise TypeError(
            f"no shader knows {parsed}: quantize a tensor on the CPU (bs.quantize), whose reference "
            f"knows every format"
        )
    return form(parsed.spelling)


def _floats(x: Texture) -> Texture:
    if x.dtype not in FLOATS:
        reference.widen(torch.empty(0, dtype=x.dtype))
    return x


def _map(
    does: str, source: Texture, made: Texture, f: Form, qparams: QParams, seed: Tensor | None
) -> None:
    """Texels of `source` -> texels of `made`."""
    at = layout(source.shape)
    if at.rows * at.width == 0:
        return
    numbers = made if does == "dequantize" else source
    boxes = _boxes(source.shape, f)
    around = geometry(source.shape, f.format.block)
    choices, constants = (dict(part) for part in shader_of(f.format))
    parts, buffers = given(f, qparams)
    bound: dict[str, Bound] = {**buffers, "source": source.texels, "result": made.texels}
    sizes = {"width": at.width, "height": at.height, "depth": at.depth}
    if boxes is not None:
        local, shared = local_size(boxes.texels, at.texels), boxes.shared
        sizes |= _named(boxes)
    else:
        local = local_size(at.texels, at.texels)
        shared = at.width % COMPONENTS == 0 and around.shares(COMPONENTS)
        sizes |= around.named
    chosen = {
        "texel": f"bits{made.texels.bits}", "does": does, "dtype": DTYPES[numbers.dtype],
        "texels": "boxes" if boxes is not None else "any", "blocks": around.kind,
        "drawn": "drawn" if f.drawn else "undrawn",
    }  # fmt: skip
    fixed: dict[str, Constant] = {"SHARED": shared, **_local(local)}
    shader = Shader(
        "texture/map",
        tuple((choices | parts | chosen).items()),
        tuple((constants | fixed).items()),
    )
    launch(shader, bound, sizes, groups(at.texels, local))


def _boxes(shape: tuple[int, ...], f: Form) -> BlockGrid | None:
    """The blocks as boxes of texels, where they are."""
    try:
        return block_grid(shape, f.format.block)
    except ValueError:
        return None


def _named(boxes: BlockGrid) -> dict[str, int]:
    blocks = {f"block_{name}": n for name, n in zip(_NAMES, boxes.sizes, strict=True)}
    strides = {f"stride_{name}": n for name, n in zip(_NAMES, boxes.strides, strict=True)}
    return blocks | strides | {"channels": boxes.tensor[2]}


def _local(size: Three) -> dict[str, Constant]:
    return dict(zip(("LOCAL_X", "LOCAL_Y", "LOCAL_Z"), size, strict=True))


def groups(size: Three, local: Three) -> Three:
    """Workgroups that cover a texture."""
    x, y, z = (-(-n // step) for n, step in zip(size, local, strict=True))
    return x, y, z
