"""A quantized tensor in memory, a slab at a time, so that floats of all of it are never there."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from blockscale.core.reference import QParams
from blockscale.files.slabs.cutting import Cuts, Sizes, Slab, block_sizes, can_be_cut, cut
from blockscale.ops.flat import in_blocks_of, within_rows
from blockscale.ops.tensor import QTensor

ELEMENTS = 1 << 19  # of a slab; what is computed of it takes about 60 bytes for each


def slabs(q: QTensor, elements: int = ELEMENTS) -> Iterator[tuple[Cuts, Slab, QTensor]]:
    """(how q is cut, which slab, the slab as a QTensor of q's rank), in order.

    No slab cuts a block in two. Where blocks run over rows, and where values are learned, q is one
    slab.
    """
    shape, fmt = tuple(q.shape), within_rows(q.format, q.shape)
    whole = Cuts(shape, 0, max(shape[0] if shape else 1, 1))
    if len(shape) < 2 or not can_be_cut(fmt) or fmt.element.learned:
        yield whole, whole.slabs[0], q
        return
    qparams = q.qparams if fmt == q.format else in_blocks_of(q.qparams, fmt, shape)
    sizes = block_sizes(fmt, len(shape))
    cuts = cut(shape, sizes.values(), elements)
    for slab in cuts.slabs:
        parts = {part: _part(getattr(qparams, part), sizes[part], cuts, slab) for part in fmt.parts}
        codes = _part(q.packed, (1,) * len(shape), cuts, slab)
        yield cuts, slab, replace(q, packed=codes, qparams=QParams(**parts), format=fmt)


def rows(x: Tensor, cuts: Cuts, slab: Slab) -> Tensor:
    """The same slab of a tensor of floats of the same shape."""
    return x if not x.ndim else _part(x, (1,) * x.ndim, cuts, slab)


def _part(tensor: Tensor, sizes: Sizes, cuts: Cuts, slab: Slab) -> Tensor:
    """What a slab needs of a tensor that has one entry for each block of `sizes`."""
    return tensor[cuts.region(slab, sizes)].contiguous()
