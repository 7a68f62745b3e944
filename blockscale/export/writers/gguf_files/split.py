# SPDX-License-Identifier: BSD-3-Clause
"""A model in several GGUF files, as llama.cpp's gguf-split lays them out and its loader finds them.

NAME-00001-of-00003.gguf has the metadata, each file `split.no`, `split.count` and
`split.tensors.count` (of all files together), by which programs know what belongs together.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from blockscale.export.writers.gguf_files.file import GGUFFile, size_of
from blockscale.export.writers.gguf_files.head import Value, encoded
from blockscale.export.writers.writer import Planned
from blockscale.ops.tensor import QTensor

_MOST = 2**16 - 1  # split.count is a u16
_IN_EACH = ("general.alignment",)  # each file's head says where its own tensors lie


class SplitGGUF:
    """Files of at most so many bytes of tensors. `write` each tensor once; `close` ends them."""

    def __init__(  # noqa: PLR0913 - as GGUFFile, and where it is split
        self,
        folder: Path,
        name: str,
        tensors: Sequence[Planned],
        metadata: Mapping[str, bytes],
        step: int,
        kinds: Mapping[str, str],
        size: int,
    ):
        """Write all heads and reserve the space.

        name: what the files' names begin with; size: bytes of tensors in a file, but for a tensor
        that is larger. Raises ValueError for more files than the format can count.
        """
        shards = parted(tensors, kinds, size)
        if len(shards) > _MOST:
            raise ValueError(
                f"{len(shards)} files of {size} bytes are more than the {_MOST} that GGUF "
                "allows: choose a larger --shard-size"
            )
        self._files: dict[str, GGUFFile] = {}
        self._all: list[GGUFFile] = []
        paths = [
            folder / f"{name}-{i:05}-of-{len(shards):05}.gguf" for i in range(1, len(shards) + 1)
        ]
        self.first = paths[0]
        own = {key: data for key, data in metadata.items() if key in _IN_EACH}
        try:
            for i, (path, shard) in enumerate(zip(paths, shards, strict=True)):
                told = {
                    "split.no": encoded(Value("u16", i)),
                    "split.count": encoded(Value("u16", len(shards))),
                    "split.tensors.count": encoded(Value("i32", len(tensors))),
                }
                made = GGUFFile(path, shard, (own if i else dict(metadata)) | told, step, kinds)
                self._all.append(made)
                self._files |= {each.name: made for each in shard}
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, value: QTensor | Tensor) -> None:
        """One tensor of the plan."""
        self._files[name].write(name, value)

    def close(self) -> None:
        """Have everything on the disk."""
        for file in self._all:
            file.close()

    def abandon(self) -> None:
        """Give the files back."""
        for file in self._all:
            file.abandon()


def parted(tensors: Sequence[Planned], kinds: Mapping[str, str], size: int) -> list[list[Planned]]:
    """Tensors in their order, as many together as `size` bytes hold, and at least one."""
    shards: list[list[Planned]] = [[]]
    filled = 0
    for tensor in tensors:
        nbytes = size_of(tensor, kinds.get(tensor.name, ""))
        if shards[-1] and filled + nbytes > size:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += nbytes
    return shards
