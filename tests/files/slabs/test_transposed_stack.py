"""A stack that lies transposed, in slabs of any size and in any order."""

import pytest
import torch
from safetensors.torch import save_file

from blockscale.files.slabs.cutting import Cuts
from blockscale.files.slabs.transposed_stack import TransposedStack
from blockscale.files.stream import Reader

STACK = torch.arange(3 * 4 * 5, dtype=torch.float32).reshape(3, 4, 5)  # [E, k, n]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 15, 100])
def test_slabs(rows, dtype, tmp_path):
    save_file({"w": STACK.to(dtype)}, tmp_path / "file")
    expected = STACK.to(dtype).mT
    with Reader(tmp_path / "file") as reader:
        stack = TransposedStack(reader, "w")
        for shape, dim in (((15, 4), 0), ((3, 5, 4), 0), ((3, 5, 4), 1)):
            cuts = Cuts(shape, dim, rows)
            for slab in reversed(cuts.slabs):
                found = stack.read(cuts, slab)
                whole = expected.reshape(shape) if not dim else expected[slab.matrix][None]
                want = (
                    whole[slab.start : slab.stop] if not dim else whole[:, slab.start : slab.stop]
                )
                assert torch.equal(found, want)
                assert found.is_contiguous()
