# SPDX-License-Identifier: BSD-3-Clause
"""bitsandbytes' four bits: nf4 and fp4 in blocks of the flattened tensor.

Layout: bitsandbytes 0.50.2, functional.py, `QuantState.as_dict`: two codes a byte, the first in the
high nibble; JSON in a tensor of bytes says the rest, which is filled up with blanks here, so that
a file can be laid out before its tensors are read.
"""

import json
from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch import Tensor

from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.export.writers import (
    Json,
    Kind,
    PlannedTensor,
    Writer,
    float_layers,
    group_of,
    only,
)
from blockscale.ops.tensor import QTensor

_ELEMENTS = ("nf4", "fp4")
_SIZES = (64, 128, 256, 512, 1024, 2048, 4096)  # of its kernels' blocks
_BLANKS = 512  # bytes of JSON


class BnbWriter(Writer):
    """bitsandbytes, 4 bits."""

    name = "bnb"
    computes = "readers of this layout round values to the dtype that they compute in"

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """As it is, or with float32 scales."""
        del shape
        return [str(fmt), f"{fmt.element.name}:{fmt.block}:fp32"]

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """nf4 and fp4 under float32, or under codes of a table with an offset."""
        name = fmt.element.name
        if name not in _ELEMENTS:
            return f"{fmt}: bitsandbytes supports nf4 and fp4"
        size = _size(fmt, shape)
        if size not in _SIZES or fmt.block.strided:
            return f"{fmt}: blocks must be {', '.join(map(str, _SIZES))} consecutive elements"
        if prod(shape) % 2 or shape[-1] % 2:
            return f"rows of {shape[-1]} codes do not fill whole bytes"
        if isinstance(fmt.scale, TwoLevel):
            inner = fmt.scale.inner
            flat, table = inner.block.flat, isinstance(inner.element, Codebook)
            if not (flat and table and inner.bits == 8 and inner.offset) or fmt.scale.reciprocal:
                return f"{fmt}: quantized scales must be codes of a table of 256, with an offset"
            return None
        return None if str(fmt.scale) == "fp32" else f"{fmt}: scales must be float32"

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """weight, absmax, quant_map, the JSON, and nested ones."""
        blocks = -(-prod(shape) // (_size(fmt, shape) or 1))
        state = f"{name}.quant_state.bitsandbytes__{fmt.element.name}"
        kinds: dict[str, Kind] = {
            name: (torch.uint8, (prod(shape) // 2, 1)),
            f"{name}.quant_map": (torch.float32, (16,)),
            state: (torch.uint8, (_BLANKS,)),
        }
        if not isinstance(fmt.scale, TwoLevel):
            return kinds | {f"{name}.absmax": (torch.float32, (blocks,))}
        outer = -(-blocks // fmt.scale.inner.block.flat)
        return kinds | {
            f"{name}.absmax": (torch.uint8, (blocks,)),
            f"{name}.nested_absmax": (torch.float32, (outer,)),
            f"{name}.nested_quant_map": (torch.float32, (256,)),
        }

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """Nibbles change places; everything else is as it is."""
        fmt, packed = q.format, q.packed.reshape(-1, 1)
        info: Json = {
            "quant_type": fmt.element.name,
            "blocksize": _size(fmt, q.shape),
            "dtype": "float32",
            "shape": list(q.shape),
        }
        data = {
            name: (packed >> 4) | (packed << 4),
            f"{name}.absmax": q.qparams.scale.reshape(-1),
            f"{name}.quant_map": _table(fmt),
        }
        if isinstance(fmt.scale, TwoLevel):
            inner, offset = fmt.scale.inner, q.qparams.scale_offset
            assert q.qparams.outer is not None and offset is not None
            data[f"{name}.nested_absmax"] = q.qparams.outer.reshape(-1)
            data[f"{name}.nested_quant_map"] = _table(inner)
            info |= {
                "nested_blocksize": inner.block.flat,
                "nested_dtype": "float32",
                "nested_offset": float(offset),
            }
        text = json.dumps(info).encode().ljust(_BLANKS)
        state = f"{name}.quant_state.bitsandbytes__{fmt.element.name}"
        return data | {state: torch.frombuffer(bytearray(text), dtype=torch.uint8)}

    def together(self, tensors: Sequence[PlannedTensor]) -> str | None:
        """One element for all."""
        return only({t.format.element.name for t in tensors if t.format is not None}, "its type")

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """`quantization_config` of transformers."""
        fmt = next(t.format for t in tensors if t.format is not None)
        settings = {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": fmt.element.name,
            "bnb_4bit_use_double_quant": isinstance(fmt.scale, TwoLevel),
            "bnb_4bit_compute_dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": float_layers(tensors, config),
        }
        return config | {"quantization_config": settings}


def _size(fmt: Format, shape: Sequence[int]) -> int | None:
    """Elements of a block; None where it is not made of elements after one another."""
    size = fmt.block.flat or group_of(fmt, shape[-1])
    return size if fmt.block.flat or (size and shape[-1] % size == 0) else None


def _table(fmt: Format) -> Tensor:
    element = parse(str(fmt)).element
    assert isinstance(element, Codebook)
    return torch.tensor(element.table, dtype=torch.float32) + 0.0  # its fp4 has 0 for -0


writer = BnbWriter()
