# SPDX-License-Identifier: BSD-3-Clause
"""optimum-quanto 0.2.7: qint2 and qint4 with float shifts, qint8 and float8 rows.

tensor/packed.py, tensor/qbits.py and tensor/qbytes.py. Four and two bits are a matrix
[elements / group, group], packed over its rows: the first part of them in the lowest bits. A file
does not hold a weight's shape there; its bias and its scales tell, or a group is taken for a row.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.core.untrusted import quote
from blockscale.export.checkpoints import assembling
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.ops.tensor import QTensor

PRODUCER = "optimum-quanto"
METHODS = ("quanto",)
_BYTES = {
    torch.int8: ("int8", ":full"), torch.float8_e4m3fn: ("e4m3", ""),
    torch.float8_e5m2: ("e5m2", ""),
}  # fmt: skip
_BITS = {"qint2": 2, "qint4": 4}


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Weights with _data and _scale."""
    del read
    tensors = LayoutTensors()
    modules = config.get("modules")
    for scale in kinds:
        name = scale.removesuffix("._scale")
        packed = f"{name}._shift" in kinds
        data = f"{name}._data._data" if f"{name}._data._data" in kinds else f"{name}._data"
        if name == scale or data not in kinds:
            continue
        base = name.removesuffix(".weight")
        info = modules.get(base) if isinstance(modules, dict) else None
        info = info if isinstance(info, dict) else {}
        beside = {f"{base}.input_scale", f"{base}.output_scale"} & kinds.keys()
        parts = {"data": data, "scale": scale} | ({"shift": f"{name}._shift"} if packed else {})
        weight = _packed(base, parts, kinds, info) if packed else _bytes(parts, kinds)
        tensors.add(name, weight, *beside)
        tensors.evidence = tensors.evidence or f"{quote(scale)} and {quote(data)} are quanto's"
        if info.get("activations") not in (None, "none") or "activations" in str(beside):
            tensors.warnings.append(f"{base}: the quantization of its activations is ignored")
    return tensors


def _packed(
    base: str, parts: Mapping[str, str], kinds: Kinds, settings: Mapping[str, Any]
) -> Weight:
    (dtype, data), (scale, scales), (shift, _) = (kinds[name] for name in parts.values())
    bits = _BITS.get(str(settings.get("weights")))
    groups = scales[0] if scales else 0
    if bits is None and len(data) == 2:  # as many rows as these bits need
        fits = [b for b in (4, 2) if groups > 1 and data[0] == -(-groups * b // 8)]
        bits = fits[0] if len(fits) == 1 else None
    kind = f"quanto qint{bits}" if bits else "quanto"
    reason = ""
    if bits is None or dtype != torch.uint8 or len(data) != 2 or scales != (groups, 1):
        reason = (
            f"its codes are {dtype} {list(data)} and its scales {list(scales)}, which match "
            "no qint4 or qint2 along axis 0"
        )
    elif scale not in (torch.float32, torch.float16, torch.bfloat16) or shift != scale:
        reason = f"its scales are {scale} and its shifts {shift}, expected the same float dtype"
    if reason or bits is None or scale is None:
        return Weight(kind, (), parts, None, reason)
    bias = kinds.get(f"{base}.bias", (None, ()))[1]
    whole = len(bias) == 1 and bias[0] > 0 and groups % bias[0] == 0
    shape = (bias[0], groups // bias[0] * data[1]) if whole else (groups, data[1])
    fmt = f"uint{bits}:{assembling.groups(data[1], shape[1])}:{assembling.scale_type(scale)}:offset"
    codes = partial(_codes, bits=bits, groups=groups)
    decode = partial(_decode_packed, codes=codes, fmt=fmt, shape=shape)
    values = None if scale == torch.float32 else partial(_values, codes=codes, shape=shape)
    return Weight(kind, shape, parts, fmt, "", decode, None, scale, values, flat=not whole)


def _codes(data: Tensor, *, bits: int, groups: int) -> Tensor:
    """Packed rows -> codes uint8 [groups, group]."""
    apart = [data >> bits * i & 2**bits - 1 for i in range(8 // bits)]
    codes = torch.cat(apart)
    if codes.shape[0] < groups:
        raise ValueError(
            f"its codes have {codes.shape[0]} rows, which do not match its {groups} scales"
        )
    return codes[:groups]


def _decode_packed(parts: Parts, *, codes: Any, fmt: str, shape: tuple[int, ...]) -> QTensor:
    own_parts = {
        "codes": assembling.packed(codes(parts["data"]).reshape(shape), fmt),
        "scale": parts["scale"],
        "offset": -parts["shift"],
    }
    return assembling.quantized(fmt, shape, own_parts)


def _values(parts: Parts, *, codes: Any, shape: tuple[int, ...]) -> Tensor:
    """Its own arithmetic, in the dtype of scales: a product and a difference, each rounded."""
    tensor: Tensor = parts["scale"] * codes(parts["data"]) - parts["shift"]
    return tensor.reshape(shape)


def _bytes(parts: Mapping[str, str], kinds: Kinds) -> Weight:
    (dtype, shape), (scale, scales) = (kinds[name] for name in parts.values())
    element, span = _BYTES.get(dtype or torch.bool, ("", ""))
    kind = f"quanto {element or dtype}"
    ones = [i for i, size in enumerate(scales) if size != 1]
    fits = len(scales) in (0, len(shape)) and all(scales[i] == shape[i] for i in ones)
    floats = scale in (torch.float32, torch.float16, torch.bfloat16)
    if not element or not fits or len(ones) > 1 or not floats or scale is None:
        reason = f"its codes are {dtype} {list(shape)} and its scales {scale} {list(scales)}"
        return Weight(kind, shape, parts, None, f"{reason}, which match no qtype")
    block = f"channel{ones[0]}" if ones else "tensor"
    fmt = f"{element}:{block}:{assembling.scale_type(scale)}{span}"
    decode = partial(_decode_bytes, fmt=fmt, shape=shape)
    return Weight(kind, shape, parts, fmt, "", decode, None, scale)


def _decode_bytes(parts: Parts, *, fmt: str, shape: tuple[int, ...]) -> QTensor:
    codes = assembling.as_codes(parts["data"], fmt)
    return assembling.quantized(fmt, shape, {"codes": codes, "scale": parts["scale"]})
