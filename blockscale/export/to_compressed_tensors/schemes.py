# SPDX-License-Identifier: BSD-3-Clause
"""Formats as compressed-tensors' config.json describes them: quantization arguments and layouts.

Source: vllm-project/compressed-tensors 0.20, quantization/quant_args.py and compressors/.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel

Arguments = dict[str, Any]


class UnsupportedError(ValueError):
    """A format that compressed-tensors has no scheme for."""


class LayerScheme(NamedTuple):
    """How the weight and the input of a layer are described.

    layout: what compressed-tensors calls the format: which tensors there are, and how they lie
    weights, inputs: quantization arguments; inputs is None where inputs stay in float
    """

    layout: str
    weights: Arguments
    inputs: Arguments | None


def scheme(weight: Format, input_format: Format | None, static: bool) -> LayerScheme:
    """The scheme of a layer.

    given: the format of inputs, None where they stay in float; static: whether their scale is
        given
    Raises UnsupportedError, with the reason, for formats without one.
    """
    weights = weight_arguments(weight)
    inputs = None if input_format is None else input_arguments(input_format, static)
    if (
        input_format is not None
        and input_format.element.name == "e2m1"
        and _kind(input_format) != _kind(weight)
    ):
        raise UnsupportedError(
            f"input {input_format}: inputs of 4 bits need weights of the same format"
        )
    return LayerScheme(_layout(weight, inputs), weights, inputs)


def experts_note(scheme: LayerScheme) -> str:
    """What of the weights of experts transformers (5.23) leaves out when it stacks them; or empty.

    Source: its integrations/compressed_tensors.py, CompressedTensorsDequantize.
    """
    text = ""
    if scheme.layout == "nvfp4-pack-quantized":
        text = "the outer scale"
    elif scheme.layout == "mxfp8-quantized":
        text = "that its scales are exponents"
    elif scheme.weights["type"] == "int" and not scheme.weights["symmetric"]:
        text = "the zero points"
    return text and (
        f"transformers (5.23) ignores {text} of experts, and loads wrong values without an "
        "error: int4 and mxfp4 are loaded correctly"
    )


def expert_patterns(names: Iterable[str]) -> list[str]:
    """Targets of one of several groups: experts as patterns, by which transformers (5.23) finds
    the scheme of their stacks, and would take another group's without."""
    return [f"re:^{re.escape(name)}$" if ".experts." in name else name for name in names]


def _kind(fmt: Format) -> tuple[str, str, type]:
    return fmt.element.name, str(fmt.block), type(fmt.scale)


_QUANTIZES = {
    "mxfp8-quantized": "vLLM (0.32) quantizes the inputs of mxfp8 weights to mxfp8 as well",
    "mxfp4-pack-quantized": "vLLM (0.32) quantizes the inputs of mxfp4 weights to mxfp4 as well "
    "where a GPU multiplies these (Blackwell)",
    "mxfp6-pack-quantized": "vLLM (0.32) does not support mxfp6: only transformers loads it",
}


def input_note(scheme: LayerScheme) -> str:
    """What vLLM does with weights whose inputs are to stay in float; empty where it leaves them."""
    return _QUANTIZES.get(scheme.layout, "") if scheme.inputs is None else ""


def weight_arguments(fmt: Format) -> Arguments:
    """Quantization arguments of a weight [out, in]. Raises UnsupportedError."""
    _refuse_parts(fmt)
    name = fmt.element.name
    if fmt.element.integer:
        if fmt.bits > 8:
            raise UnsupportedError(f"{fmt}: integers must have 1 to 8 bits, got {fmt.bits}")
        _float_scale(fmt)
        symmetric = fmt.element.signed and not fmt.asym
        return _arguments("int", fmt.bits, symmetric) | _weight_blocks(fmt)
    if name == "e4m3" and isinstance(fmt.scale, FloatScale):
        return _arguments("float", 8, True) | _weight_blocks(fmt)
    if isinstance(fmt.scale, TwoLevel) and name == "e2m1" and str(fmt.block) == "group16":
        _nvfp4_scale(fmt)
        return _arguments("float", 4, True) | _NVFP4
    if name in _MX and _is_mx(fmt):
        return _arguments("float", fmt.bits, True) | {
            "strategy": "group",
            "group_size": 32,
            "scale_dtype": "torch.uint8",
        }
    raise UnsupportedError(f"{fmt}: unknown element of compressed-tensors; choose from {KNOWN}")


_NVFP4 = {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
KNOWN = (
    "integers of 1 to 8 bits and e4m3 under float scales, nvfp4, and e2m1, e2m3 and e4m3 in "
    "groups of 32 under e8m0"
)
_MX = {"e2m1": "mxfp4-pack-quantized", "e2m3": "mxfp6-pack-quantized", "e4m3": "mxfp8-quantized"}


def input_arguments(fmt: Format, static: bool) -> Arguments:
    """Quantization arguments of an input [..., in]. Raises UnsupportedError."""
    _refuse_parts(fmt)
    block, integer = str(fmt.block), fmt.element.integer
    symmetric = not integer or (fmt.element.signed and not fmt.asym)
    facts = _arguments("int" if integer else "float", fmt.bits, symmetric)
    if fmt.element.name in ("e2m1", "e4m3") and _is_mx(fmt):
        more = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
        return facts | more | {"dynamic": True}
    if isinstance(fmt.scale, TwoLevel) and fmt.element.name == "e2m1" and block == "group16":
        if not static:
            raise UnsupportedError(
                f"input {fmt}: its outer scale must be static: calibrate the model with "
                f"input='{_with_supplied_outer(fmt)}'"
            )
        _nvfp4_scale(fmt)
        return facts | _NVFP4 | {"dynamic": "local"}
    if not (integer and fmt.bits <= 8) and fmt.element.name != "e4m3":
        raise UnsupportedError(
            f"input {fmt}: inputs must be integers of at most 8 bits, e4m3, nvfp4 with a "
            "static outer scale, or e2m1 in groups of 32 under e8m0"
        )
    _float_scale(fmt)
    if block == "tensor":
        return facts | {"strategy": "tensor", "dynamic": not static}
    if block == "token":
        return facts | {"strategy": "token", "dynamic": True}
    if block.startswith("group") and "@" not in block:
        size = fmt.block.sizes[0][1]
        return facts | {"strategy": "group", "group_size": size, "dynamic": True}
    raise UnsupportedError(f"input {fmt}: the block of inputs must be tensor, token or groupN")


def _layout(weight: Format, inputs: Arguments | None) -> str:
    if isinstance(weight.scale, TwoLevel):
        return "nvfp4-pack-quantized"
    if isinstance(weight.scale, PowerOfTwo) and not weight.element.integer:
        return _MX[weight.element.name]
    if not weight.element.integer:
        return "naive-quantized" if inputs is None else "float-quantized"
    return "pack-quantized" if inputs is None or weight.bits < 8 else "int-quantized"


def _arguments(kind: str, bits: int, symmetric: bool) -> Arguments:
    return {"num_bits": bits, "type": kind, "symmetric": symmetric, "dynamic": False}


def _weight_blocks(fmt: Format) -> Arguments:
    block, sizes = str(fmt.block), dict(fmt.block.sizes)
    if block == "tensor":
        return {"strategy": "tensor"}
    if block in ("channel0", "token"):
        return {"strategy": "channel"}
    if set(sizes) == {-1} and fmt.block.rest == 1 and sizes[-1] != WHOLE:
        return {"strategy": "group", "group_size": sizes[-1]}
    if block.startswith("tile"):
        if fmt.bits != 8 or fmt.asym:
            raise UnsupportedError(f"{fmt}: tiles need elements of 8 bits and no zero points")
        return {"strategy": "block", "block_structure": [sizes[-2], sizes[-1]]}
    raise UnsupportedError(
        f"{fmt}: the block of weights must be tensor, channel0, groupN or tileRxC"
    )


def _refuse_parts(fmt: Format) -> None:
    if fmt.offset is not None or fmt.zero is not None:
        raise UnsupportedError(f"{fmt}: offsets and zero points in float cannot be stored")
    if isinstance(fmt.scale, CodeScale):
        raise UnsupportedError(f"{fmt}: scales in {fmt.scale} cannot be stored")


def _float_scale(fmt: Format) -> None:
    """A power of two that is stored as float32 is one; a byte would need another reader."""
    scale = fmt.scale
    if isinstance(scale, FloatScale) or (isinstance(scale, PowerOfTwo) and not scale.byte):
        return
    raise UnsupportedError(f"{fmt}: scales of this element must be floats, got {scale}")


def _nvfp4_scale(fmt: Format) -> None:
    assert isinstance(fmt.scale, TwoLevel)
    if str(fmt.scale.inner) != "e4m3:tensor:fp32":
        raise UnsupportedError(f"{fmt}: scales of nvfp4 must be e4m3 with one float32 outer scale")


def _with_supplied_outer(fmt: Format) -> Format:
    """The same with an outer scale that is given."""
    assert isinstance(fmt.scale, TwoLevel)
    return replace(fmt, scale=replace(fmt.scale, given=True))


def _is_mx(fmt: Format) -> bool:
    scale = fmt.scale
    return str(fmt.block) == "group32" and isinstance(scale, PowerOfTwo) and scale.byte
