# SPDX-License-Identifier: BSD-3-Clause
"""A model's file or directory as a mapping of names to tensors, whoever wrote it."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.work import Closing
from blockscale.files.metadata import FileError, Metadata
from blockscale.files.stored_model import StoredModel
from blockscale.ops.tensor import QTensor


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint, as its head tells of it.

    kind: what its producer calls how it is stored, such as "Q4_K", or a dtype
    shape: of the values; nbytes: of all that is stored for it
    format: the spelling of the format as which it is read; None for a tensor that is not quantized
    unread: why it cannot be read; empty where it can
    flat: its file does not tell the shape; a row is a group of elements that follow each other
    dtype: torch's, of the values as which it is read; None for one that is quantized or unread
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    nbytes: int
    format: str | None = None
    unread: str = ""
    flat: bool = False
    dtype: torch.dtype | None = None

    @property
    def bits(self) -> float:
        """Stored bits of an element, scales included."""
        return 8 * self.nbytes / max(prod(self.shape), 1)


class Checkpoint(Mapping[str, QTensor | Tensor], Closing):
    """{name: QTensor, or Tensor where nothing is quantized}; nothing is read until it is asked for.

    producer: whose format it is, such as "GGUF"; evidence: what in the file tells so
    stored: {name: what its head says}; metadata: what else it says about the model
    warnings: what is odd, such as a version that what is stored contradicts

    Codes, scales and offsets are those of the file, unchanged: a QTensor's `dequantize()` equals
    the producer's own values in every bit, and kernels run on it. Reading raises FileError for a
    tensor that cannot be read, with the reason in `stored[name].unread`, and for damaged data.
    """

    producer: str = ""

    def __init__(self, path: Path, evidence: str):
        self.path, self.evidence = path, evidence
        self.stored: dict[str, Stored] = {}
        self.metadata: dict[str, Any] = {}
        self.warnings: list[str] = []

    def __getitem__(self, name: str) -> QTensor | Tensor:
        stored = self.stored[name]
        if stored.unread:
            raise FileError(f"{self.path}: {name}: {stored.unread}")
        return self._read(stored)

    @abstractmethod
    def _read(self, stored: Stored) -> QTensor | Tensor:
        """One tensor that can be read."""

    def without_codes(self, name: str) -> QTensor | Tensor:
        """A tensor whose codes may be on the meta device: shapes, scales and zero points are read.

        Where a producer's parts cannot be read alone, the same as `self[name]`.
        """
        return self[name]

    def first_rows(self, name: str) -> QTensor | None:
        """Some of a tensor's first rows, where they are had in a fraction of the whole's time."""
        del name
        return None

    def order(self, name: str) -> Tensor | None:
        """The inputs of a weight whose groups are of inputs in another order; else None.

        int64 [inputs]: column i of the QTensor is column order[i] of the weight (GPTQ's act-order).
        """
        del name
        return None

    def has_order(self, name: str) -> bool:
        """Whether `order` of a weight is not None, by its head alone."""
        del name
        return False

    def rounds(self, name: str) -> bool:
        """Whether a weight's producer computes its values with other roundings than a QTensor."""
        del name
        return False

    def dequantize(self, name: str) -> Tensor:
        """The values of a tensor as the producer's own dequantizer gives them, in its dtype.

        They are those of `self[name].dequantize(dtype)`, but for columns that `order` speaks of and
        for producers that round in other places than our formats (docs/checkpoints.md).
        """
        result = self[name]
        return result.dequantize() if isinstance(result, QTensor) else result

    @property
    def own_metadata(self) -> Metadata:
        """What our own files say about themselves; empty for those of others."""
        return Metadata()

    @property
    def inputs(self) -> Mapping[str, str]:
        """{layer: the spelling of the format of its input}, as other producers quantize it."""
        return {}

    def input_parts(self, layer: str) -> Mapping[str, Tensor]:
        """What is static of a layer's input, as our quantizers hold it."""
        raise KeyError(layer)

    @property
    def unquantized(self) -> StoredModel | None:
        """The files as `bs.load` reads floats, where nothing in them is quantized; else None."""
        return None

    def in_model(self, model: nn.Module) -> "Checkpoint":
        """The tensors under the names that a model has, where this producer gives others.

        Raises FileError for a model that cannot be this file's.
        """
        del model
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def __repr__(self) -> str:
        return f"<Checkpoint {self.producer}, {len(self)} tensors, {str(self.path)!r}>"

    def file_of(self, name: str) -> Path:
        """The file in which a tensor's codes are, or the tensor. Raises KeyError without one."""
        self.stored[name]
        return self.path

    def close(self) -> None:
        """Give the files back."""
