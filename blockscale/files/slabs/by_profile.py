"""Quantize one tensor as a producer does: whole, since its rules may look at all of it."""

from collections.abc import Iterator

from torch import Tensor

from blockscale.core.profiles.knobs import Profile
from blockscale.files.slabs.cutting import Cuts, Slab
from blockscale.files.slabs.quantize_tensor import Piece
from blockscale.files.slabs.rows import Rows
from blockscale.layers.model.build import beside_rows
from blockscale.layers.saturation import told_of_odd
from blockscale.layers.signs import lost_signs
from blockscale.ops.quantize import quantize


class ByProfile:
    """In the place of a TensorQuantizer. `notes` is complete when `pieces` is exhausted."""

    def __init__(self, rows: Rows, name: str, profile: Profile):
        self._rows, self._name, self._profile = rows, name, profile
        self._top: Tensor | None = None
        self.notes: tuple[str, ...] = ()

    def share(self, top: Tensor) -> None:
        """Take the outer scale of all whose largest numerator this is."""
        self._top = top

    def pieces(self) -> Iterator[Piece]:
        """All that is stored. Raises ValueError, with the tensor's name, where the producer does
        not take it."""
        count = self._rows.shape[0]
        x = self._rows.read(Cuts(self._rows.shape, 0, count), Slab(0, count))
        try:
            q = beside_rows(
                x, self._profile.format, self._top, lambda x: quantize(x, self._profile)
            )
        except ValueError as error:
            raise ValueError(f"{self._name}: {error}") from None
        odd = told_of_odd(x)
        self.notes = (*([odd] if odd else []), *lost_signs("weight", x, q.format))
        for part in q.format.parts:
            yield Piece(part, 0, getattr(q.qparams, part))
        yield Piece("codes", 0, q.packed)
