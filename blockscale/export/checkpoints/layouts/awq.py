# SPDX-License-Identifier: BSD-3-Clause
"""AWQ: AutoAWQ's `gemm` and `gemv` (casper-hansen/AutoAWQ, awq/utils/packing_utils.py, 88e4c76).

gemm: qweight int32 [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs];
nibble i of a word is output 0 2 4 6 1 3 5 7 of its eight. gemv: qweight int32 [outputs,
inputs / 8] in natural order, qzeros [outputs, words] and scales [outputs, groups], both padded.
Zero points are stored as they are.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.export.checkpoints import assembling
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.ops.tensor import QTensor

PRODUCER = "AWQ"
METHODS = ("awq",)
_SCALES = (torch.float16, torch.bfloat16, torch.float32)
_CODES = "uint4:tensor:fp32"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output in nibble i of a word
_NIBBLE = (0, 4, 1, 5, 2, 6, 3, 7)  # of a word, where each of eight outputs is
_FIRST = 64  # outputs that are decoded alone
_PARTS = ("qweight", "qzeros", "scales")


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Modules with qweight, qzeros and scales, and no g_idx."""
    del read
    tensors, is_awq = LayoutTensors(), config.get("quant_method") in METHODS
    for name in kinds:
        base = name.removesuffix(".qweight")
        if base == name or f"{base}.g_idx" in kinds or not _whole(base, kinds):
            continue
        version = _version(base, kinds, config, is_awq)
        if version or is_awq:
            weight = _weight(base, kinds, config, version)
            tensors.add(f"{base}.weight", weight)
            tensors.evidence = tensors.evidence or f"{name} and its scales are AWQ's {version}"
    return tensors


def _whole(base: str, kinds: Kinds) -> bool:
    shapes = [kinds[f"{base}.{p}"][1] for p in _PARTS if f"{base}.{p}" in kinds]
    return len(shapes) == 3 and all(len(shape) == 2 for shape in shapes)


def _version(base: str, kinds: Kinds, config: Mapping[str, Any], is_declared: bool) -> str:
    """gemm or gemv by the shapes, or what the configuration says; empty if neither tells."""
    (dtype, codes), (other, zeros), (_, scales) = (kinds[f"{base}.{part}"] for part in _PARTS)
    packed = dtype == other == torch.int32
    info = str(config.get("version", config.get("format", ""))).lower() if is_declared else ""
    if packed and codes[1] * 8 == scales[1] and zeros == (scales[0], codes[1]):
        return "gemm"
    natural = packed and codes[0] == scales[0] == zeros[0]
    if natural and is_declared and info in ("", "gemv"):  # padding hides how many groups there are
        return "gemv"
    return "" if info in ("gemm", "gemv") else info


def _weight(base: str, kinds: Kinds, config: Mapping[str, Any], version: str) -> Weight:
    parts = {part: f"{base}.{part}" for part in _PARTS}
    (_, codes), (_, zeros), (scale, scales) = (kinds[name] for name in parts.values())
    value = config.get("group_size", config.get("q_group_size"))
    kind, reason, shape = f"awq {version}".strip(), "", (0, 0)
    size = value if isinstance(value, int) and value > 0 else 0
    groups = scales[0]
    if version == "gemm":
        shape = (scales[1], codes[0])
        size = shape[1] // max(groups, 1)
        if not size or shape[1] % groups:
            reason = f"its {shape[1]} inputs cannot be divided into {groups} groups"
    elif version == "gemv":
        shape = (codes[0], codes[1] * 8)
        size = size or shape[1]
        groups = -(-shape[1] // max(size, 1))
        if not groups or scales[1] < groups or zeros[1] * 8 < groups:
            reason = f"it has {scales[1]} scales per row, expected {groups} for groups of {size}"
    elif not version:
        reason = "the shapes and dtypes of its tensors match neither gemm nor gemv"
    else:
        reason = (
            f"its version is {version!r}, rearranged for one kernel; gemm and gemv are supported"
        )
    if not reason and scale not in _SCALES:
        reason = f"its scales are {scale}, expected float16, bfloat16 or float32"
    if reason or scale is None:
        return Weight(kind, shape if any(shape) else (), parts, None, reason)
    fmt = f"uint4:{assembling.groups(size, shape[1])}:{assembling.scale_type(scale)}:asym"
    split = _gemm if version == "gemm" else partial(_gemv, groups=groups)
    decode = partial(_decode, split=split, fmt=fmt, shape=shape)
    first, rows = None, min(_FIRST, shape[0])
    if version == "gemm":
        few = partial(_few_of_gemm, rows=rows)
        first = partial(_decode, split=few, fmt=fmt, shape=(rows, shape[1]))
    return Weight(kind, shape, parts, fmt, "", decode, None, scale, codes="qweight", first=first)


def _decode(parts: Parts, *, split: Any, fmt: str, shape: tuple[int, ...]) -> QTensor:
    return assembling.quantized(fmt, shape, split(parts))


def _outputs(stored: Tensor) -> Tensor:
    """Words [n, outputs / 8] in AWQ's order -> codes [n, outputs]."""
    apart = assembling.fields(stored, 4).unflatten(-1, (-1, 8))
    return apart[..., list(_NIBBLE)].flatten(-2)


def _gemm(parts: Parts) -> dict[str, Tensor]:
    return {
        "codes": assembling.rows_of_words(parts["qweight"], ORDER),
        "scale": parts["scales"].mT,
        "zero_point": _outputs(parts["qzeros"]).mT.to(torch.int32),
    }


def _few_of_gemm(parts: Parts, *, rows: int) -> dict[str, Tensor]:
    """The same of the first outputs, whose words are columns."""
    ends = {"scales": rows}
    return _gemm({role: part[:, : ends.get(role, rows // 8)] for role, part in parts.items()})


def _gemv(parts: Parts, *, groups: int) -> dict[str, Tensor]:
    return {
        "codes": assembling.as_codes(parts["qweight"], _CODES),
        "scale": parts["scales"][:, :groups],
        "zero_point": assembling.fields(parts["qzeros"], 4, groups).to(torch.int32),
    }
