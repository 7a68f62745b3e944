# SPDX-License-Identifier: BSD-3-Clause
"""What a reference gave for each batch, in a safetensors file: the float model need not fit beside.

Whole logits are kept as they are, so that every figure is that of the model itself. Of the `top`
likeliest classes alone, in some hundredths of the bytes, losses and agreements stay exact, and `kl`
is that between distributions in which all other classes are one: at most the whole one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from blockscale.core.untrusted import FileError, parse_json
from blockscale.evaluation.journal import batch_digest
from blockscale.evaluation.kinds import TopLogits, logits_of, top_logits
from blockscale.files.header import LENGTH, tensor_of
from blockscale.files.stream import Reader, bytes_of
from blockscale.files.whole import check_place, written_whole

LEAST = 10  # of the likeliest classes: agreement of ten needs them
_KEY = "blockscale_reference"  # of the file's metadata
_RESERVED, _ENTRY = 512, 512  # bytes of a header, and for each batch in it
_PARTS = ("ids", "logs", "rest", "target")


class ReferenceFile:
    """A reference's file while it is written, a batch at a time.

    count: how many batches there will be; top: None for whole logits
    Raises ValueError for a place that is none and for too few classes.
    """

    def __init__(self, path: str | Path, count: int, top: int | None):
        if top is not None and top < LEAST:
            raise ValueError(f"top (classes that are kept) must be >= {LEAST}, got {top}")
        self._top, self._begin = top, LENGTH + _RESERVED + _ENTRY * count
        self._whole = written_whole(check_place(path, "reference.safetensors"))
        self._about: dict[str, Any] = {"schema": 1, "top": top, "kind": "", "batches": []}
        self._tensors: dict[str, Any] = {}
        self._end = 0

    def __enter__(self) -> "ReferenceFile":
        self._file = self._whole.__enter__().open("r+b")
        self._file.seek(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._whole.__exit__(kind, error, trace)

    def add(self, batch: Any, output: Any, kind: str) -> None:
        """Keep what the reference gave. Raises ValueError for what has no logits."""
        logits = logits_of(output)
        if logits is None or kind == "outputs":
            raise ValueError(
                "only logits can be stored for later: keep the float model beside, or have it "
                "return logits"
            )
        index, self._about["kind"] = len(self._about["batches"]), kind
        self._about["batches"].append(batch_digest(batch))
        if self._top is None:
            self._write_tensor(f"{index}.logits", logits)
            return
        top = top_logits(kind, batch, logits, min(self._top, logits.shape[-1]))
        for part in _PARTS:
            self._write_tensor(f"{index}.{part}", getattr(top, part))

    def _write_tensor(self, name: str, tensor: Tensor) -> None:
        plain = tensor.detach().cpu().contiguous()
        entry = tensor_of(plain.dtype, tuple(plain.shape))
        self._tensors[name] = {
            "dtype": entry.dtype, "shape": list(entry.shape),
            "data_offsets": [self._end, self._end + entry.nbytes],
        }  # fmt: skip
        self._file.write(bytes_of(plain))
        self._end += entry.nbytes

    def _finish(self) -> None:
        """The header, in the place that was left for it: spaces may follow its JSON."""
        about = {"__metadata__": {_KEY: json.dumps(self._about)}}
        header = json.dumps(about | self._tensors).encode()
        room = self._begin - LENGTH
        assert len(header) <= room, (len(header), room)
        self._file.seek(0)
        self._file.write(room.to_bytes(LENGTH, "little") + header.ljust(room))


@dataclass(frozen=True)
class StoredReference:
    """What a reference gave, read a batch at a time.

    path: the file; kind: of what it was measured as; top: how many classes are kept, None for all
    batches: {digest of a batch: its place}
    """

    path: Path
    kind: str
    top: int | None
    batches: Mapping[str, int]

    @classmethod
    def open(cls, path: str | Path) -> "StoredReference":
        """Raises FileError for a file that is none of ours."""
        path = Path(path)
        with Reader(path) as reader:
            text = reader.metadata.get(_KEY)
            names = set(reader.tensors)
        about = parse_json(text, f"{path}: {_KEY}") if text else None
        if not isinstance(about, dict) or about.get("schema") != 1:
            raise FileError(
                f"{path} holds no reference of an evaluation: write one with bs.evaluate(model, "
                "batches, store=…) or `blockscale eval FLOAT --store FILE`"
            )
        kind, top, digests = (about.get(name) for name in ("kind", "top", "batches"))
        parts = ("logits",) if top is None else _PARTS
        if (
            not (isinstance(kind, str) and isinstance(digests, list))
            or not (top is None or type(top) is int)
            or any(f"{i}.{part}" not in names for i in range(len(digests)) for part in parts)
        ):
            raise FileError(f"{path}: its description and its tensors do not fit: write it again")
        return cls(path, kind, top, {str(each): i for i, each in enumerate(digests)})

    @staticmethod
    def is_one(path: str | Path) -> bool:
        """Whether a path is such a file, and not a model."""
        if not Path(path).is_file() or Path(path).suffix != ".safetensors":
            return False
        with Reader(Path(path)) as reader:
            return _KEY in reader.metadata

    @property
    def run(self) -> str:
        """What tells such files apart."""
        return batch_digest([self.kind, self.top, *self.batches])

    def of(self, batch: Any, kind: str) -> Tensor | TopLogits:
        """What the reference gave for a batch.

        Raises ValueError for a batch that it did not see, and for another kind.
        """
        index = self.batches.get(batch_digest(batch))
        if index is None:
            raise ValueError(
                f"{self.path} was made of {len(self.batches)} other batches: give the same text, "
                "length and number of sequences at one time as then, or store it again"
            )
        if kind != self.kind:
            raise ValueError(
                f"{self.path} was stored as {self.kind!r}, and this is {kind!r}: evaluate with "
                f"kind={self.kind!r}, or store it again"
            )
        with Reader(self.path) as reader:
            if self.top is None:
                return reader.tensor(f"{index}.logits")
            return TopLogits(*(reader.tensor(f"{index}.{part}") for part in _PARTS))


def beside(reference: Any) -> StoredReference | None:
    """The stored reference that is meant by a path or is one; None for a model or none."""
    if isinstance(reference, str | Path):
        return StoredReference.open(reference)
    return reference if isinstance(reference, StoredReference) else None
