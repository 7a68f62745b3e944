# SPDX-License-Identifier: BSD-3-Clause
"""Our own files (docs/files.md), which hold every format: what `bs.load` and bs.checkpoint read."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.export.writers import Json, Kind, PlannedTensor, Writer
from blockscale.files.metadata import Metadata, TensorInfo
from blockscale.ops.tensor import QTensor


class BlockscaleWriter(Writer):
    """Files of blockscale."""

    name = "blockscale"
    embeddings = True
    floats = True
    parameters = True

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """As it is."""
        del shape
        return [str(fmt)]

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Everything."""
        del fmt, shape
        return None

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """name.codes, name.scale, …"""
        kinds = TensorInfo(str(fmt), tuple(shape)).parts()
        return {f"{name}.{part}": kind for part, kind in kinds.items()}

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """The parts as they are."""
        parts = {k: part for k, part in _by_name(q.qparams).items() if part is not None}
        return {f"{name}.codes": q.packed} | {f"{name}.{k}": part for k, part in parts.items()}

    def metadata(self, tensors: Sequence[PlannedTensor]) -> dict[str, str]:
        """What each tensor's codes mean."""
        infos = {
            t.name: TensorInfo(str(t.format), t.shape) for t in tensors if t.format is not None
        }
        return Metadata(tensors=infos).encode()

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """As it is: the files themselves say how they are quantized."""
        del tensors
        return config


def _by_name(qparams: QParams) -> dict[str, Tensor | None]:
    return qparams._asdict()


writer = BlockscaleWriter()
