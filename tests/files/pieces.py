# SPDX-License-Identifier: BSD-3-Clause
"""Files that are written a few rows at a time."""

from blockscale.files.header import lay_out, tensor_of
from blockscale.files.stream import StreamWriter


def specs(tensors):
    return {name: tensor_of(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def write(path, tensors, metadata, rows=2):
    header, placed = lay_out(specs(tensors), metadata)
    with StreamWriter(path, header, placed) as writer:
        assert not writer.is_resumed
        for name, tensor in tensors.items():
            count = tensor.shape[0] if tensor.ndim else 1
            for start in reversed(range(0, count, rows)):
                piece = tensor[start : start + rows] if tensor.ndim else tensor
                writer.rows(name, start, piece)
        writer.sync()
    return header, placed
