# SPDX-License-Identifier: BSD-3-Clause
"""The tensors that compressed-tensors stores for a quantized layer: codes and scales as they are.

Layouts: vllm-project/compressed-tensors 0.20, compressors/.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.export.to_compressed_tensors.schemes import LayerScheme, UnsupportedError
from blockscale.layers.kinds import QLinear
from blockscale.layers.store import QInput, QWeight
from blockscale.ops.tensor import QTensor

_UNSIGNED = {bits: parse(f"uint{bits}:tensor:fp32").element for bits in range(1, 9)}
_NEIGHBOURS = 8  # float32 numbers on either side of 1 / outer that are tried for its reciprocal


def layer_tensors(
    layer: QLinear, scheme: LayerScheme, partners: Sequence[QTensor] = ()
) -> tuple[dict[str, Tensor], str]:
    """{name after the layer's: tensor} of its weight and input, and what is not exact, if anything.

    partners: the weights that share its outer scale, which is then written as the same number
    Raises UnsupportedError where the weight does not fit the scheme.
    """
    tensors, info = tensors_of(layer.qweight.tensor, scheme, partners)
    return tensors | input_tensors(layer.input), info


def weight_tensors(weight: QWeight, scheme: LayerScheme) -> tuple[dict[str, Tensor], str]:
    """The same for a weight [out, in] alone."""
    return tensors_of(weight.tensor, scheme)


def tensors_of(
    q: QTensor, scheme: LayerScheme, partners: Sequence[QTensor] = ()
) -> tuple[dict[str, Tensor], str]:
    """The same for a quantized tensor [out, in]."""
    layout = scheme.layout
    group = scheme.weights.get("group_size", 1)
    if q.size % group:
        raise UnsupportedError(f"{q.size} inputs are not a multiple of its group size, {group}")
    if layout == "nvfp4-pack-quantized":
        return _nvfp4(q, partners)
    if layout in ("mxfp4-pack-quantized", "mxfp6-pack-quantized"):
        return {"weight_packed": q.packed, "weight_scale": q.qparams.scale}, ""
    if not q.format.element.integer:
        scale = q.qparams.scale if layout == "mxfp8-quantized" else _scale(q)
        return {"weight": q.packed.view(torch.float8_e4m3fn), "weight_scale": scale}, ""
    return _integers(q, packed=layout == "pack-quantized"), ""


def _scale(q: QTensor) -> Tensor:
    """Float scales, [1] where there is one for all."""
    scale = q.qparams.scale
    return scale.reshape(1) if str(q.format.block) == "tensor" else scale


def _integers(q: QTensor, packed: bool) -> dict[str, Tensor]:
    bits, signed = q.format.bits, q.format.element.signed
    half = 2 ** (bits - 1)
    tensors = {"weight_scale": _scale(q)}
    if packed and q.size * bits % 32 == 0 and 8 % bits == 0:  # its stream is ours, from 0 on
        flip = sum(half << at for at in range(0, 8, bits)) if signed else 0
        stream = q.packed.contiguous().view(torch.uint8)
        tensors["weight_packed"] = (stream ^ flip if flip else stream).view(torch.int32)
        tensors["weight_shape"] = torch.tensor(q.shape, dtype=torch.int64)
    elif packed:
        tensors["weight_packed"] = words((q.codes.to(torch.int32) + half * signed), bits)
        tensors["weight_shape"] = torch.tensor(q.shape, dtype=torch.int64)
    else:
        tensors["weight"] = (q.codes.to(torch.int32) - (0 if signed else half)).to(torch.int8)
    if q.format.asym or not signed:
        zero = zero_points(q.zero_point, tensors["weight_scale"], bits, signed)
        blocks = tensors["weight_scale"].ndim > 1
        # packed along dimension 0, several rows to a word
        wide = words((zero.to(torch.int32) + half).T, bits).T.contiguous() if blocks else zero
        tensors["weight_zero_point"] = wide if packed else zero
    return tensors


def zero_points(zero: Tensor | None, scale: Tensor, bits: int, signed: bool) -> Tensor:
    """Zero points as int8, of the scale's shape, in the range of signed codes."""
    half = 2 ** (bits - 1)
    plain = torch.zeros_like(scale, dtype=torch.int32) if zero is None else zero
    result = plain.reshape(scale.shape) - (0 if signed else half)
    if result.numel() and (int(result.min()) < -half or int(result.max()) >= half):
        raise UnsupportedError(f"its zero points do not fit in {bits} bits")
    return result.to(torch.int8)


def words(codes: Tensor, bits: int) -> Tensor:
    """Codes [rows, columns] from 0 on -> int32 words, each row a dense stream of bits."""
    stream = pack(codes.to(torch.uint8), _UNSIGNED[bits]).view(torch.uint8)
    stream = F.pad(stream, (0, -stream.shape[-1] % 4))
    return stream.reshape(-1).view(torch.int32).reshape(codes.shape[0], -1)


def _nvfp4(q: QTensor, partners: Sequence[QTensor]) -> tuple[dict[str, Tensor], str]:
    scale, outer = q.qparams.scale, q.qparams.outer
    assert outer is not None and isinstance(q.format.scale, TwoLevel)
    text = ""
    if not q.format.scale.reciprocal:
        codes = [each.qparams.scale.reshape(-1) for each in (q, *partners)]
        outer, exact = reciprocal(torch.cat(codes), outer)
        text = "" if exact else _INEXACT
    tensors = {
        "weight_packed": q.packed,
        "weight_scale": scale.view(torch.float8_e4m3fn),
        "weight_global_scale": outer.reshape(1),
    }
    return tensors, text


_INEXACT = (
    "no reciprocal of its outer scale gives every step exactly: some differ in the last bit "
    "of float32; the format e2m1:group16:e4m3/inv stores the reciprocal itself"
)


def reciprocal(codes: Tensor, outer: Tensor) -> tuple[Tensor, bool]:
    """The float32 G with fl(s / G) = fl(s * outer) for every scale s, and whether there is one.

    codes: e4m3 scales as stored; where no G near 1 / outer is exact, the nearest one
    """
    values = torch.unique(codes.reshape(-1)).view(torch.float8_e4m3fn).to(torch.float32)
    values = values[values.isfinite()]
    target = values * outer.reshape(())
    nearest = (1 / outer.to(torch.float64)).reshape(()).to(torch.float32)
    bits = nearest.view(torch.int32)
    for step in sorted(range(-_NEIGHBOURS, _NEIGHBOURS + 1), key=abs):
        factor = (bits + step).view(torch.float32)
        if torch.equal(values / factor, target):
            return factor, True
    return nearest, False


def input_tensors(quantizer: QInput | None) -> dict[str, Tensor]:
    """A static input's scale; of nvfp4, what x is multiplied by before blocks choose theirs."""
    if quantizer is None or not quantizer.static:
        return {}
    fmt, stored = quantizer.format, quantizer.qparams
    if isinstance(fmt.scale, TwoLevel):
        outer = quantizer._buffers["outer"]
        assert outer is not None
        divisor = outer if fmt.scale.reciprocal else 1 / outer.to(torch.float64)
        return {"input_global_scale": divisor.to(torch.float32).reshape(1)}
    assert stored is not None
    scale = stored.scale.reshape(1)
    tensors = {"input_scale": scale}
    if fmt.element.integer and (fmt.asym or not fmt.element.signed):
        zero = zero_points(stored.zero_point, scale, fmt.bits, fmt.element.signed)
        tensors["input_zero_point"] = zero
    return tensors
