"""The header of a safetensors file: which tensors it holds, and where.

The format: 8 bytes N (little-endian), N bytes of JSON {name: {"dtype", "shape", "data_offsets"}},
then the tensors' bytes without gaps. Dtypes and shapes are all it needs, so a file can be laid out
before its first tensor is computed.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch

from blockscale.files.stored_model import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = 8  # bytes that hold the header's length
LARGEST = 100_000_000  # bytes of JSON that safetensors' own reader accepts


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    dtype: str  # safetensors' name, known to torch or not
    shape: tuple[int, ...]
    nbytes: int
    start: int = 0  # its first byte in the file

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """None for a dtype that torch does not have: such bytes can only be copied."""
        return DTYPES.get(self.dtype)


def sized(dtype: torch.dtype, shape: tuple[int, ...]) -> StoredTensor:
    """What a tensor of `dtype` and `shape` takes."""
    return StoredTensor(_NAMES[dtype], tuple(shape), prod(shape) * dtype.itemsize)


def lay_out(
    tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, StoredTensor]]:
    """The file's first bytes, and where each tensor goes.

    Wide dtypes come first, as in safetensors' own writer, so that every tensor is aligned.
    """
    order = sorted(tensors, key=lambda name: -_width(tensors[name]))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    starts, end = {}, 0
    for name in order:
        dtype, shape, nbytes, _ = tensors[name]
        starts[name] = end
        end += nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [starts[name], end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    first = LENGTH + len(text)
    placed = {name: tensors[name]._replace(start=first + starts[name]) for name in order}
    return len(text).to_bytes(LENGTH, "little") + text, placed


def _width(tensor: StoredTensor) -> int:
    return 1 if tensor.torch_dtype is None else tensor.torch_dtype.itemsize


def parse_header(text: bytes) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The JSON of a header -> its tensors in the file's order, and its metadata.

    Raises ValueError where it is none: damaged JSON, gaps between tensors, sizes that do not fit.
    """
    try:
        data = json.loads(text)
        metadata = dict(data.pop("__metadata__", None) or {})
        specs = {name: _read_spec(entry, LENGTH + len(text)) for name, entry in data.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(repr(error)) from None
    tensors = dict(sorted(specs.items(), key=lambda item: (item[1].start, item[1].nbytes)))
    end = LENGTH + len(text)
    for name, tensor in tensors.items():
        if tensor.start != end:
            raise ValueError(f"tensor {name!r} starts at byte {tensor.start}, not {end}")
        end += tensor.nbytes
    return tensors, metadata


def _read_spec(entry: Mapping[str, Any], first: int) -> StoredTensor:
    shape = tuple(int(size) for size in entry["shape"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    tensor = StoredTensor(str(entry["dtype"]), shape, end - begin, first + begin)
    known = tensor.torch_dtype
    if known is not None and prod(shape) * known.itemsize != tensor.nbytes:
        raise ValueError(f"{tensor.dtype} {list(shape)} does not take {tensor.nbytes} bytes")
    return tensor
