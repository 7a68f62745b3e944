# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors, which transformers and vLLM load: schemes of ours, without a model.

Layouts: blockscale/export/to_compressed_tensors/, as `bs.export.compressed_tensors` writes them.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.scale import FLOAT_SCALES
from blockscale.export.to_compressed_tensors.schemes import (
    LayerScheme,
    UnsupportedError,
    expert_patterns,
    experts_note,
    input_note,
    scheme,
)
from blockscale.export.to_compressed_tensors.tensors import tensors_of
from blockscale.export.writers import Json, Kind, PlannedTensor, Writer, float_layers, layer_of
from blockscale.ops.tensor import QTensor

_VERSION = "0.20.0"
_FLOATS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class CompressedTensorsWriter(Writer):
    """compressed-tensors: integers, e4m3, nvfp4 and OCP's microscaling formats."""

    name = "compressed-tensors"
    computes = "readers of this layout round values to the model's dtype"
    joins = True

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """As it is; else with zero points, or with a float scale in the place of two levels."""
        del shape
        yield str(fmt)
        if str(fmt.plain.scale) == "e4m3":
            yield f"{fmt.element.name}:{fmt.block}:e4m3/inv"
        if fmt.element.integer or fmt.element.name == "ternary":
            kinds = [str(fmt.scale)] if str(fmt.scale) in FLOAT_SCALES else []
            for kind in dict.fromkeys([*kinds, *FLOAT_SCALES]):
                if fmt.element.signed:
                    yield f"int{fmt.bits}:{fmt.block}:{kind}:full"
                yield f"uint{fmt.bits}:{fmt.block}:{kind}:asym"

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """What compressed-tensors has a scheme for."""
        if len(shape) != 2:
            return f"it has {len(shape)} dimensions, and only matrices can be stored"
        try:
            result = scheme(fmt, None, static=False)
        except UnsupportedError as error:
            return str(error)
        if result.layout == "nvfp4-pack-quantized" and not str(fmt.plain.scale).endswith("/inv"):
            return f"{fmt}: compressed-tensors divides by the outer scale (e4m3/inv)"
        group = result.weights.get("group_size", 1)
        if shape[-1] % group:
            return f"its rows of {shape[-1]} do not divide into groups of {group}"
        words = result.layout == "pack-quantized" and fmt.element.integer
        if words and str(fmt.block) == "tensor" and (fmt.asym or not fmt.element.signed):
            return f"{fmt}: packed zero points must be of rows or groups"
        return None

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """weight or weight_packed, weight_scale, and what else the scheme has."""
        layer, layout = layer_of(name), scheme(fmt, None, static=False).layout
        stored = fmt.stored(shape)
        dtype, sizes = stored["scale"]
        tensor = str(fmt.block) == "tensor"
        kinds: dict[str, Kind] = {}
        if layout == "nvfp4-pack-quantized":
            kinds["weight_global_scale"] = stored["outer"][0], (1,)
            dtype = torch.float8_e4m3fn
        kinds["weight_scale"] = dtype, (1,) if tensor else sizes
        if layout in ("pack-quantized", "int-quantized"):
            kinds |= _integers(fmt, shape, layout == "pack-quantized", sizes)
        elif layout.endswith("pack-quantized"):
            kinds["weight_packed"] = torch.uint8, (shape[0], shape[1] * fmt.bits // 8)
        else:
            kinds["weight"] = torch.float8_e4m3fn, tuple(shape)
        return {f"{layer}.{part}": kind for part, kind in kinds.items()}

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """As bs.export.compressed_tensors stores it."""
        result, _ = tensors_of(q, scheme(q.format, None, static=False))
        return {f"{layer_of(name)}.{part}": tensor for part, tensor in result.items()}

    def notes(self, tensors: Sequence[PlannedTensor]) -> list[str]:
        """Experts in layouts that transformers takes for others, and what vLLM does with inputs
        that are to stay in float."""
        data = {
            t.name: scheme(t.format, None, static=False) for t in tensors if t.format is not None
        }
        experts = {name: experts_note(each) for name, each in data.items() if ".experts." in name}
        first = {note: name for name, note in reversed(experts.items()) if note}
        lines = [f"{name} and others: {note}" for note, name in first.items()]
        return lines + list(dict.fromkeys(filter(None, map(input_note, data.values()))))

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """`quantization_config`: a group of layers for each scheme, and the layers of none."""
        groups: dict[str, tuple[LayerScheme, list[str]]] = {}
        for each in tensors:
            if each.format is not None:
                result = scheme(each.format, None, static=False)
                groups.setdefault(repr(result), (result, []))[1].append(layer_of(each.name))
        layouts = {result.layout for result, _ in groups.values()}
        settings = {
            "quant_method": "compressed-tensors",
            "version": _VERSION,
            "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": {
                f"group_{i}": {
                    "targets": names if len(groups) == 1 else expert_patterns(names),
                    "weights": result.weights,
                    "input_activations": None,
                    "output_activations": None,
                    "format": result.layout,
                }
                for i, (result, names) in enumerate(groups.values())
            },
            "ignore": float_layers(tensors, config),
            "kv_cache_scheme": None,
            "global_compression_ratio": None,
        }
        return config | {"quantization_config": settings}


def _integers(
    fmt: Format, shape: Sequence[int], packed: bool, scales: tuple[int, ...]
) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {"weight": (torch.int8, tuple(shape))}
    if packed:
        words = -(-shape[1] * fmt.bits // 32)
        kinds = {
            "weight_packed": (torch.int32, (shape[0], words)),
            "weight_shape": (torch.int64, (2,)),
        }
    if fmt.asym or not fmt.element.signed:
        sizes = -(-scales[0] * fmt.bits // 32), scales[1]
        zero = (torch.int32, sizes) if packed else (torch.int8, scales)
        kinds["weight_zero_point"] = zero
    return kinds


writer = CompressedTensorsWriter()
