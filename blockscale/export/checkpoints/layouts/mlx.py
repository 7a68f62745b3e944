# SPDX-License-Identifier: BSD-3-Clause
"""MLX (mlx 0.32.4): affine of 2, 3, 4, 5, 6, 8 bits, mxfp4, mxfp8 and nvfp4, as mlx-lm writes them.

weight uint32 [..., outputs, inputs * bits / 32] is a dense stream along each row; scales and biases
[..., outputs, groups]. Affine values are code * scale + bias, rounded twice to their dtype; the
other modes have a byte for a scale. transformers calls biases `qbiases` where it writes them.
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

PRODUCER = "MLX"
METHODS = ("mlx", "metal")
_WORDS = (torch.uint32, torch.int32)
_MODES = {  # {(group, bits): (name, element, scale)}
    (32, 4): ("mxfp4", "e2m1", "e8m0/given"), (32, 8): ("mxfp8", "e4m3", "e8m0/given"),
    (16, 4): ("nvfp4", "e2m1", "e4m3"),
}  # fmt: skip
_BITS = (2, 3, 4, 5, 6, 8)
_GROUP = 64  # where nothing says another: mlx-lm's own


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Weights of uint32 with scales beside them."""
    del read
    tensors = LayoutTensors()
    for name, (dtype, shape) in kinds.items():
        base = name.removesuffix(".weight")
        scales = f"{base}.scales"
        if base == name or dtype not in _WORDS or scales not in kinds or len(shape) < 2:
            continue
        parts = {"codes": name, "scale": scales}
        for biases in ("biases", "qbiases"):
            if f"{base}.{biases}" in kinds:
                parts["offset"] = f"{base}.{biases}"
        tensors.add(name, _weight(parts, kinds, _settings(base, config)))
        tensors.evidence = tensors.evidence or f"{quote(name)} of uint32 and its scales are MLX's"
    return tensors


def _settings(base: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the configuration says of a module; it may have an entry of its own."""
    own = config.get(base)
    return dict(config) | (own if isinstance(own, dict) else {})


def _weight(parts: Mapping[str, str], kinds: Kinds, data: Mapping[str, Any]) -> Weight:
    (_, stored), (scale, scales) = kinds[parts["codes"]], kinds[parts["scale"]]
    affine = "offset" in parts
    size = data.get("group_size") or (_GROUP if affine else 32)
    size = size if type(size) is int and 0 < size < 2**20 else _GROUP
    inputs = size * (scales[-1] if scales else 0)
    bits = stored[-1] * 32 // inputs if inputs and stored[-1] * 32 % inputs == 0 else 0
    shape = (*stored[:-1], inputs)
    kind, fmt, reason = f"mlx {bits} bits", "", ""
    if stored[:-1] != scales[:-1] or bits not in _BITS:
        reason = (
            f"its codes are {list(stored)} words and its scales {list(scales)}, which match "
            f"no number of bits in groups of {size}"
        )
    elif affine and (kinds[parts["offset"]] != (scale, scales)):
        reason = (
            f"its biases are {kinds[parts['offset']][0]}, and its scales {scale}, expected "
            "the same dtype"
        )
    elif affine:
        try:
            block, scales_as = assembling.groups(size, inputs), assembling.scale_type(scale)
            fmt = f"uint{bits}:{block}:{scales_as}:offset"
        except ValueError as error:
            reason = str(error)
    elif (size, bits) in _MODES and scale == torch.uint8:
        name, element, of_scale = _MODES[size, bits]
        kind, fmt = f"mlx {name}", f"{element}:group{size}:{of_scale}"
    else:
        reason = f"it has no biases, and MLX has no mode of {bits} bits in groups of {size}"
    if reason or scale is None:
        return Weight(kind, shape if not reason else (), parts, None, reason)
    decode = partial(_decode, fmt=fmt, shape=shape)
    if not affine:
        return Weight(kind, shape, parts, fmt, "", decode, None, torch.bfloat16, codes="codes")
    rounds = scale != torch.float32
    values = partial(_values, bits=bits, shape=shape) if rounds else None
    return Weight(kind, shape, parts, fmt, "", decode, None, scale, values, codes="codes")


def _decode(parts: Parts, *, fmt: str, shape: tuple[int, ...]) -> QTensor:
    table = dict(parts) | {"codes": assembling.as_codes(parts["codes"], fmt)}
    if fmt.endswith(":e4m3"):  # of two levels, of which MLX has the first
        table["outer"] = torch.ones(())
    return assembling.quantized(fmt, shape, table)


def _values(parts: Parts, *, bits: int, shape: tuple[int, ...]) -> Tensor:
    """Its own arithmetic, in the dtype of scales: a product and a sum, each rounded."""
    codes = assembling.fields(parts["codes"], bits).reshape(*parts["scale"].shape, -1)
    scale, bias = parts["scale"].unsqueeze(-1), parts["offset"].unsqueeze(-1)
    tensor: Tensor = codes.to(scale.dtype) * scale + bias
    return tensor.reshape(shape)
