# SPDX-License-Identifier: BSD-3-Clause
"""The header of a safetensors file: which tensors it holds, and where.

The format: 8 bytes N (little-endian), N bytes of JSON {name: {"dtype", "shape", "data_offsets"}},
then the tensors' bytes without gaps. Dtypes and shapes are all it needs, so a file can be laid out
before its first tensor is computed.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from blockscale.core.untrusted import LONGEST, json_object, parse_json, quote

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu, "C64": torch.complex64,
}  # fmt: skip
# Of an element, in safetensors 0.8, which has some dtypes that torch has not.
BITS = {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()}
BITS |= {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = 8  # bytes that hold the header's length
LARGEST = 100_000_000  # bytes of JSON that safetensors' own reader accepts
_MOST = 2**64 - 1  # of a size or an offset
_FIELDS = {"dtype", "shape", "data_offsets"}
_LARGEST_SIZE = 2**63 - 1  # elements of a tensor of torch, and of one without its empty dimensions


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


def begins(start: bytes, size: int) -> bool:
    """Whether a file of `size` bytes begins as these do: a length that fits, and a first brace."""
    fits = int.from_bytes(start[:LENGTH], "little") <= size - LENGTH
    return fits and start[LENGTH : LENGTH + 1] == b"{"


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...]) -> StoredTensor:
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
    layout = {name: tensors[name]._replace(start=first + starts[name]) for name in order}
    return len(text).to_bytes(LENGTH, "little") + text, layout


def _width(tensor: StoredTensor) -> int:
    return 1 if tensor.torch_dtype is None else tensor.torch_dtype.itemsize


def parse_header(text: bytes) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The JSON of a header -> its tensors in the file's order, and its metadata.

    Raises ValueError for what safetensors' own reader refuses, and for a few things that it takes
    (docs/limits.md): a key twice, blanks before the first brace, very long names, sizes that no
    tensor of torch can have.
    """
    if text[:1] != b"{":
        raise ValueError("it does not begin with a brace")
    integer = _no_minus if b"-0" in text else None
    data = json_object(parse_json(text, "it", most=LARGEST, integer=integer), "it")
    metadata = _read_metadata(data.pop("__metadata__", None))
    specs = {name: _read_spec(name, entry, LENGTH + len(text)) for name, entry in data.items()}
    tensors = dict(sorted(specs.items(), key=lambda item: (item[1].start, item[1].nbytes)))
    end = LENGTH + len(text)
    for name, tensor in tensors.items():
        if tensor.start != end:
            raise ValueError(f"tensor {quote(name)} starts at byte {tensor.start}, expected {end}")
        end += tensor.nbytes
    return tensors, metadata


def order_metadata(path: Path) -> None:
    """Put the metadata of a file that safetensors wrote in the order of their keys.

    Its own order differs from call to call; so, two saves of one model are the same bytes.
    """
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(LENGTH), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > length:
            raise AssertionError(f"{path}: a header of {length} bytes became one of {len(text)}")
        file.seek(LENGTH)
        file.write(text.ljust(length))


def _no_minus(text: str) -> int:
    """An integer, but -0, which safetensors takes for a fraction."""
    if text == "-0":
        raise ValueError("-0 is not a size")
    return int(text)


def _read_metadata(data: Any) -> dict[str, str]:
    """What a file says about itself: text by text. null is none, as safetensors has it."""
    texts = {} if data is None else json_object(data, "its __metadata__")
    for key, value in texts.items():
        if not isinstance(value, str):
            raise ValueError(f"its __metadata__ has {quote(key)}, whose value is not text")
    return texts


def _read_spec(name: str, entry: Any, first: int) -> StoredTensor:
    """One entry of a header, whose data begin at byte `first` of the file."""
    if len(name) > LONGEST:
        raise ValueError(f"the name {quote(name)} is too long: at most {LONGEST:,} characters")
    if not isinstance(entry, dict) or not entry.keys() >= _FIELDS:
        raise ValueError(f"tensor {quote(name)} lacks one of {', '.join(sorted(_FIELDS))}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"tensor {quote(name)}: safetensors has no dtype {quote(dtype)}")
    if not _sizes(shape) or prod(size for size in shape if size) > _LARGEST_SIZE:
        raise ValueError(f"tensor {quote(name)}: {quote(shape)} is not a shape")
    if not _sizes(offsets) or len(offsets) != 2:  # the first byte, and that after the last
        raise ValueError(
            f"tensor {quote(name)}: its data_offsets are {quote(offsets)}, expected two "
            "positions in order"
        )
    begin, end = offsets
    if prod(shape) * BITS[dtype] != 8 * (end - begin):
        raise ValueError(
            f"tensor {quote(name)}: {dtype} {quote(shape)} does not take {end - begin} bytes"
        )
    return StoredTensor(dtype, tuple(shape), end - begin, first + begin)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= _MOST for n in value)
