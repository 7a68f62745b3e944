# SPDX-License-Identifier: BSD-3-Clause
"""safetensors files a piece at a time: reading and writing hold no more than what is asked for.

A file's space is reserved before its first tensor is computed. Reading goes through `pread`, not
`mmap`: mapped pages would count as this process's memory until the kernel takes them back.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

import torch
from torch import Tensor

from blockscale.core.untrusted import FileError, open_regular, quote
from blockscale.core.work import Closing
from blockscale.files.header import LARGEST, LENGTH, StoredTensor, parse_header

_CHUNK = 1 << 24  # bytes copied at a time


class Tensors(Protocol):
    """What floats are read from: a Reader, or what stands for one."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """{name: what is stored}."""

    def rows(
        self, name: str, start: int, stop: int, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """As `Reader.rows`."""

    def tensor(self, name: str) -> Tensor:
        """As `Reader.tensor`."""

    def chunks(self, name: str) -> Iterator[memoryview]:
        """As `Reader.chunks`."""


Header = tuple[dict[str, StoredTensor], dict[str, str]]
_kept: ContextVar[dict[bytes, Header] | None] = ContextVar("headers that were parsed", default=None)


@contextmanager
def headers_kept() -> Iterator[None]:
    """Parse each header once that is read inside, by its bytes, however often a file is opened."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _parse(text: bytes) -> Header:
    headers = _kept.get()
    if headers is None:
        return parse_header(text)
    digest = blake2b(text).digest()
    if digest not in headers:
        headers[digest] = parse_header(text)
    return headers[digest]


class Reader(Closing):
    """A safetensors file open for reading.

    tensors:  {name: StoredTensor}, in the file's order
    metadata: what the file says about itself
    size:     bytes of the whole file

    Raises FileError for a file that is missing, not safetensors or cut short.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = open_regular(path)
        try:
            self.size = os.fstat(self._file).st_size
            self.tensors, self.metadata = self._header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def _header(self) -> tuple[dict[str, StoredTensor], dict[str, str]]:
        length = int.from_bytes(os.pread(self._file, LENGTH, 0), "little")
        if not 2 <= length <= min(LARGEST, self.size - LENGTH):
            self._refuse(f"it has {self.size} bytes, but its header should have {length}")
        try:
            tensors, metadata = _parse(os.pread(self._file, length, LENGTH))
        except ValueError as error:
            self._refuse(f"its header cannot be read ({error})")
        end = LENGTH + length + sum(tensor.nbytes for tensor in tensors.values())
        if end != self.size:
            self._refuse(f"it has {self.size} bytes, but its header describes {end}")
        return tensors, metadata

    def _refuse(self, reason: str) -> NoReturn:
        raise FileError(
            f"{self.path}: not a whole safetensors file: {reason}. Download or copy it again"
        )

    def rows(
        self, name: str, start: int, stop: int, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """Rows [start, stop) of a tensor -> [stop - start, ...]; rank 0 has one row, [].

        shape: to be seen as, with the same elements, e.g. leading dimensions made one.
        """
        tensor = self.tensors[name]
        dtype = tensor.torch_dtype
        if dtype is None:
            raise FileError(
                f"{self.path}: tensor {quote(name)} has dtype {tensor.dtype}, which torch "
                "does not have"
            )
        shape = tensor.shape if shape is None else shape
        row = tensor.nbytes // max(shape[0] if shape else 1, 1)
        rows = torch.empty((stop - start, *shape[1:]) if shape else (), dtype=dtype)
        self._fill(bytes_of(rows), tensor.start + start * row)
        return rows

    def tensor(self, name: str) -> Tensor:
        """The whole of a tensor."""
        shape = self.tensors[name].shape
        return self.rows(name, 0, shape[0] if shape else 1)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """The bytes of a tensor, a few MB at a time."""
        tensor = self.tensors[name]
        for start in range(0, tensor.nbytes, _CHUNK):
            chunk = memoryview(bytearray(min(_CHUNK, tensor.nbytes - start)))
            self._fill(chunk, tensor.start + start)
            yield chunk

    def _fill(self, target: memoryview, start: int) -> None:
        so_far = 0
        while so_far < len(target):
            count = self._read(target[so_far : so_far + _CHUNK], start + so_far)
            if not count:
                raise FileError(
                    f"{self.path}: ends at byte {start + so_far}: it was truncated while being read"
                )
            so_far += count

    def _read(self, target: memoryview, start: int) -> int:
        """Fill the beginning of `target`; returns how many bytes came."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file, [target], start)
        data = os.pread(self._file, len(target), start)  # old systems
        target[: len(data)] = data
        return len(data)


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous tensor's bytes, not copied."""
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


class StreamWriter(Closing):
    """A safetensors file whose pieces are written in any order.

    is_resumed: whether `path` was already this file, begun by an earlier run; its pieces are kept.
    """

    def __init__(self, path: Path, header: bytes, tensors: Mapping[str, StoredTensor]):
        """header, tensors: what `lay_out` gave."""
        self._path, self._tensors = path, tensors
        size = len(header) + sum(tensor.nbytes for tensor in tensors.values())
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
        try:
            same = os.fstat(self._file).st_size == size
            self.is_resumed = same and os.pread(self._file, len(header), 0) == header
            if not self.is_resumed:
                os.ftruncate(self._file, 0)
                _reserve(self._file, size)
                self._write(memoryview(header), 0)
        except BaseException:
            os.close(self._file)
            raise

    @classmethod
    def join(cls, path: Path, size: int, tensors: Mapping[str, StoredTensor]) -> Self:
        """A file of `size` bytes that another process has begun: some of its tensors.

        Raises FileError where it is not there in that size.
        """
        writer = cls.__new__(cls)
        writer._path, writer._tensors, writer.is_resumed = path, tensors, True
        try:
            writer._file = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise FileError(f"{path} cannot be written ({error.strerror})") from None
        size_there = os.fstat(writer._file).st_size
        if size_there != size:
            os.close(writer._file)
            raise FileError(f"{path} has {size_there} bytes, expected {size} as it was begun")
        return writer

    def close(self) -> None:
        """Close the file, written or not."""
        os.close(self._file)

    def rows(self, name: str, row: int, rows: Tensor) -> None:
        """Write `rows` [r, ...] from index `row` on; leading dimensions may have been made one."""
        assert rows.dtype == self._tensors[name].torch_dtype, (name, rows.dtype)
        size = rows.nbytes // max(rows.shape[0] if rows.ndim else 1, 1)
        self.chunk(name, row * size, bytes_of(rows.contiguous()))

    def chunk(self, name: str, offset: int, data: memoryview) -> None:
        """Write bytes from `offset` of a tensor on."""
        tensor = self._tensors[name]
        assert 0 <= offset <= tensor.nbytes - len(data), (name, offset, len(data), tensor)
        self._write(data, tensor.start + offset)

    def _write(self, data: memoryview, start: int) -> None:
        written_bytes = 0
        while written_bytes < len(data):
            written_bytes += os.pwrite(self._file, data[written_bytes:], start + written_bytes)

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        getattr(os, "fdatasync", os.fsync)(self._file)  # macOS has no fdatasync


def _reserve(file: int, size: int) -> None:
    """Take the file's space now, so that a full disk is found before hours of work."""
    if hasattr(os, "posix_fallocate") and size:
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
