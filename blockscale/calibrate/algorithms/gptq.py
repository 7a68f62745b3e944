"""GPTQ: column after column is rounded, and the columns to come make up for the error.

Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: accurate post-training quantization for generative
pre-trained transformers", ICLR 2023 (arXiv 2210.17323), algorithm 1, sections 3.2 and 3.3. Here any
format will do: what shares a scale is the format's block.
"""

from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibrate.algorithms import gram as grams
from blockscale.calibrate.algorithms.block_scales import widened
from blockscale.calibrate.algorithms.columns import Columns
from blockscale.calibrate.algorithms.mse import MSE
from blockscale.core.format import Format
from blockscale.ops.flat import in_blocks_of, within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

_TRIES = 16  # each with ten times the damping


class GPTQ:
    """Error feedback under the gram matrix H of the layer's inputs.

    scales: how a block's scale is chosen: "absmax", or "mse" as the algorithm of that name does,
        weighted by what an error still costs after later columns have made up for it, 1 / U_jj^2
        (the paper's eq. 2). It is chosen when the first of the block's columns is reached, from
        weights that already make up for earlier errors.
    damping: what is added to H's diagonal, in parts of its mean. Where H still has no Cholesky
        factor it is raised tenfold until it has one, and a note says so.
    act_order: columns with large inputs first (the paper's code calls it so). Codes and scales stay
        in the weight's order.
    static: choose all scales from the weight as it was given.
    batch: columns whose errors are handed on together (section 3.3, step 2); only speed depends on
        it.

    All arithmetic on H and on the weights in progress is float64: errors add up over thousands of
    columns, and the factor of an ill-conditioned H loses half its digits. Rounding itself is that
    of the format, in float32. If plain rounding has the lower error tr((W - Q) H (W - Q)^T) it is
    kept, and a note says so: error feedback looks at one column at a time and can lose.
    """

    name: ClassVar[str] = "gptq"
    needs_gram = True

    def __init__(
        self,
        scales: str = "mse",
        *,
        damping: float = 0.01,
        act_order: bool = True,
        static: bool = False,
        batch: int = 128,
    ):
        if scales not in ("absmax", "mse"):
            raise ValueError(f"gptq: scales are chosen by 'absmax' or 'mse', not {scales!r}")
        if not damping >= 0:
            raise ValueError(f"gptq: damping is a part of H's diagonal, at least 0, not {damping}")
        if batch < 1:
            raise ValueError(f"gptq: a batch has at least one column, not {batch}")
        self.scales, self.damping, self.batch = scales, damping, batch
        self.act_order, self.static = act_order, static

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`; without a gram matrix nothing is fed back, with a note."""
        x = widened(weight, fmt, layer)
        if fmt.block.flat:
            return self._quantize_flat(x, fmt, gram, layer)
        k = x.shape[1]
        if gram is None:
            alone = (
                quantize(x, fmt)
                if self.scales == "absmax"
                else MSE().quantize(x, fmt, None, layer)[0]
            )
            return alone, ["nothing known of its inputs: every column is rounded by itself"]
        h = grams.checked(gram.to(x.device), k, layer)
        alive, dead = _without_dead(h)
        notes = [f"{dead} of {k} inputs were always 0: their columns are rounded as they are"] * (
            dead > 0
        )
        order = torch.arange(k, device=x.device)
        if self.act_order:
            order = alive.diagonal().argsort(descending=True, stable=True)
        factor, damping = inverse_factor(alive[order][:, order], self.damping, layer)
        if damping > self.damping:
            notes.append(f"H has no Cholesky factor: damping raised to {damping:g}")
        columns = Columns(x, fmt, self._importance(factor, order))
        if self.static:
            columns.choose_all(x)
        self._feed_back(x, columns, factor, order)
        fed_back, plain = columns.finished(), quantize(x, fmt)
        if error_of(fed_back, x, h) > error_of(plain, x, h):
            return plain, [*notes, "error feedback did not lower the error: rounded to nearest"]
        return fed_back, notes

    def _quantize_flat(
        self, x: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """The same in blocks over the flattened weight, where rows hold them whole."""
        rows = within_rows(fmt, x.shape)
        if rows.block.flat:
            raise ValueError(
                f"{layer}: {fmt}: its blocks end within rows of {x.shape[1]} columns, which gptq "
                f"rounds one after the other: use 'mse', or groups in the place of flat blocks"
            )
        q, notes = self.quantize(x, rows, gram, layer)
        return QTensor(q.packed, in_blocks_of(q.qparams, fmt, x.shape), fmt, q.size), notes

    def _importance(self, factor: Tensor, order: Tensor) -> Tensor | None:
        """What an error costs after later columns made up for it: 1 / U_jj^2 (its eq. 2)."""
        if self.scales == "absmax":
            return None
        return factor.diagonal().pow(-2)[order.argsort()]

    def _feed_back(self, x: Tensor, columns: Columns, factor: Tensor, order: Tensor) -> None:
        """Round all columns in `order`; `factor` is that of the permuted H."""
        pending = x.double()[:, order]  # without the errors of the batch in progress
        of_block = columns.block_of[order]
        blocks, stored = of_block.tolist(), order.tolist()
        for first in range(0, x.shape[1], self.batch):
            last = min(first + self.batch, x.shape[1])
            errors = pending.new_zeros(x.shape[0], last - first)
            for i in range(first, last):
                so_far = slice(0, i - first), slice(first, i)
                if not columns.chosen[blocks[i]]:
                    places = (of_block == blocks[i]).nonzero()[:, 0]
                    places = places[order[places].argsort()]
                    shift = errors[:, so_far[0]] @ factor[so_far[1]][:, places]
                    columns.choose(blocks[i], (pending[:, places] - shift).float())
                current = pending[:, i] - errors[:, so_far[0]] @ factor[so_far[1], i]
                rounded = columns.round(stored[i], current.float())
                errors[:, i - first] = (current - rounded) / factor[i, i]
            pending[:, last:] -= errors @ factor[first:last, last:]


def _without_dead(h: Tensor) -> tuple[Tensor, int]:
    """H with the mean of its diagonal for inputs that were always 0, and how many those are.

    The rest of their rows and columns is 0 in any X^T X: they neither give nor take errors.
    """
    dead = h.diagonal() == 0
    count = int(dead.sum())
    if not count:
        return h, 0
    mean = h.diagonal()[~dead].mean() if count < len(h) else h.new_ones(())
    return h + torch.diag(dead * mean), count


def inverse_factor(h: Tensor, damping: float, layer: str) -> tuple[Tensor, float]:
    """Symmetric H [k, k] float64 -> upper U with U^T U = (H + damping · mean diag)^-1, the damping.

    U is the inverse of R in H = R R^T with R upper, and R is the Cholesky factor of H backwards:
    one factorization and no inverse of H, which the paper's code computes and factors again.
    """
    size = float(h.diagonal().mean()) if len(h) else 0.0
    one = torch.eye(len(h), dtype=h.dtype, device=h.device)
    for _ in range(_TRIES):
        backwards, failed = torch.linalg.cholesky_ex((h + damping * size * one).flip(0, 1))
        if not int(failed):
            r = backwards.flip(0, 1)
            return torch.linalg.solve_triangular(r, one, upper=True), damping
        damping = max(10 * damping, 1e-6)
    raise ValueError(
        f"{layer}: the gram matrix of its inputs has no Cholesky factor, even with damping "
        f"{damping / 10:g}: it is no X^T X, recompute it"
    )


def error_of(q: QTensor, weight: Tensor, h: Tensor) -> float:
    """tr((W - Q) H (W - Q)^T): the squared error of the layer's outputs, per row of its inputs."""
    difference = weight.double() - q.dequantize()
    return float((difference @ h * difference).sum())
