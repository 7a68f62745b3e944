"""The order of rows of q and k: llama.cpp has the halves of a head interleaved."""

import torch
from torch import Tensor

from blockscale.core.reference import QParams
from blockscale.ops.tensor import QTensor


def interleaved(rows: int, heads: int) -> Tensor:
    """For each row in GGUF, which of transformers' it is: int64 [rows].

    As llama.cpp's convert_hf_to_gguf.py has it (`permute`). Raises ValueError where `rows` are no
    whole heads of an even size.
    """
    if heads < 1 or rows % (2 * heads):
        raise ValueError(f"{rows} rows are no {heads} heads of an even size")
    places = torch.arange(rows).reshape(heads, 2, rows // heads // 2)
    return places.transpose(1, 2).reshape(-1)


def separated(rows: int, heads: int) -> Tensor:
    """The other way: for each row of transformers, which of GGUF's it is."""
    return interleaved(rows, heads).argsort()


def reordered(value: QTensor | Tensor, order: Tensor) -> QTensor | Tensor:
    """Row i of the result is row order[i]. Raises ValueError where rows share scales with others.

    Codes and scales move; none is changed.
    """
    if isinstance(value, Tensor):
        return value[order]
    fmt, count = value.format, value.shape[0]
    if fmt.block.flat:
        raise ValueError(f"{fmt}: rows share scales with their neighbours and cannot move alone")
    parts = {}
    for name, part in value.qparams._asdict().items():
        if part is None or (part.ndim and part.shape[0] == 1) or name == "book":
            parts[name] = part
        elif part.shape[0] == count:
            parts[name] = part[order]
        else:
            raise ValueError(
                f"{fmt}: rows share scales with their neighbours and cannot move alone"
            )
    return QTensor(value.packed[order], QParams(**parts), fmt, value.size)
