"""A weight that is quantized column after column, with scales that are chosen on the way."""

from dataclasses import replace

import torch
from torch import Tensor

from blockscale.calibrate.algorithms.block_scales import choose_scales, put, spread
from blockscale.calibrate.algorithms.mse import search
from blockscale.core import reference
from blockscale.core.block import WHOLE, read_block
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor


class Columns:
    """Codes and scales of a weight [n, k] in progress.

    block_of: [k], which column of the scale each column of the weight belongs to
    chosen:   for each column of the scale, whether it is known
    """

    def __init__(self, weight: Tensor, fmt: Format, importance: Tensor | None):
        """Importance: [k] float64 for scales of least (weighted) squared error, None for amax."""
        self._format, self._importance = fmt, importance
        self._single, self._qparams, self._outer = spread(weight, fmt)
        self._column = replace(self._single, block=read_block("token"))
        n, k = weight.shape
        across, along = fmt.block.sizes_for(2)
        self._row_block = _indices(n, across, weight.device)
        self.block_of = _indices(k, along, weight.device)
        self.chosen = [False] * self._qparams.scale.shape[1]
        self._codes = torch.empty(n, k, dtype=fmt.element.code_dtype, device=weight.device)

    def choose(self, block: int, x: Tensor) -> None:
        """Choose the scales of one column of blocks from its weights [n, columns] float32."""
        at = slice(block, block + 1)
        outer = None if self._outer is None else self._outer[:, at].contiguous()
        if self._importance is None:
            low, high, _ = reference.ranges(x, self._single)
            qparams = choose_scales(low, high, self._single, outer)
        else:
            qparams = search(x, self._single, outer, self._importance[self.block_of == block])
        put(qparams, self._qparams, (slice(None), at))
        self.chosen[block] = True

    def choose_all(self, weight: Tensor) -> None:
        """Choose every scale from the weight [n, k] float32 as it is."""
        for block in range(len(self.chosen)):
            self.choose(block, weight[:, self.block_of == block])

    def round(self, column: int, x: Tensor) -> Tensor:
        """Column x [n] float32 -> its values [n] float32; its codes are kept."""
        at = self._row_block, self.block_of[column]
        parts = self._qparams._replace(outer=self._outer)
        qparams = QParams(*(None if p is None else p[at][:, None] for p in parts))  # type: ignore[arg-type]
        codes = reference.quantize(x[:, None], qparams, self._column)
        self._codes[:, column] = codes[:, 0]
        return reference.dequantize(codes, qparams, self._column, torch.float32)[:, 0]

    def finished(self) -> QTensor:
        """All codes with their scales."""
        packed = primitives.pack(self._codes, str(self._format))
        return QTensor(packed, self._qparams, self._format, self._codes.shape[1])


def _indices(n: int, size: int, device: torch.device) -> Tensor:
    """Which block each of n rows or columns belongs to."""
    return (
        torch.zeros(n, dtype=torch.int64, device=device)
        if size == WHOLE
        else (torch.arange(n, device=device) // size)
    )
