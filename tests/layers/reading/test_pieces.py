# SPDX-License-Identifier: BSD-3-Clause
"""Views and pieces that keep codes, and those that cannot."""

import pytest
import torch

import blockscale as bs
from blockscale.layers.store import QWeight

KEPT = {
    "t": lambda w: w.t(),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "permute": lambda w: w.permute(1, 0),
    "transpose": lambda w: w.transpose(-1, -2),
    "twice": lambda w: w.t().t(),
    "rows": lambda w: w[2:6],
    "one slice": lambda w: w.narrow(0, 3, 2),
    "of rows": lambda w: w[2:6][1:],
    "split": lambda w: w.split(3)[1],
    "split into": lambda w: w.split([5, 3])[1],
    "chunk": lambda w: w.chunk(2)[1],
    "columns of the transposed": lambda w: w.t()[:, 1:4],
    "all": lambda w: w[:],
    "same view": lambda w: w.view(8, 64),
    "detached": lambda w: w.detach(),
}
FLOATS = {
    "columns": lambda w: w[:, 3:],
    "every other": lambda w: w[::2],
    "a row": lambda w: w[3],
    "reshaped": lambda w: w.reshape(4, 128),
    "diagonal": lambda w: w.diagonal(),
    "unsqueezed": lambda w: w[None],
}


@pytest.mark.parametrize("kind", [*KEPT, *FLOATS])
@pytest.mark.parametrize("fmt", ["mxfp4", "int8_channel", "nvfp4"])
def test_matrices(fmt: str, kind: str) -> None:
    weight = QWeight.quantize(torch.randn(8, 64), bs.parse(fmt))
    run = (KEPT | FLOATS)[kind]
    found, expected = run(weight.read()), run(weight.dequantize())
    assert found.shape == expected.shape
    assert torch.equal(found + 0, expected)
    assert (found.source.operand is not None) == (kind in KEPT)
    assert torch.equal(found.contiguous() + 0, expected)
    with pytest.raises(RuntimeError, match="its codes are fixed"):
        found.zero_()


@pytest.mark.parametrize("fmt", ["mxfp4", "int8:token:fp32", "int8:tensor:fp32"])
def test_stacks(fmt: str) -> None:
    weight = QWeight.quantize(torch.randn(3, 8, 64), bs.parse(fmt))
    read, values = weight.read(), weight.dequantize()
    for one, expected in (
        (read[1], values[1]), (read[-1], values[-1]), (read.unbind(0)[2], values[2]),
        (read[1:], values[1:]), (read.mT[0], values.mT[0]), (read[0].t(), values[0].t()),
        (read.transpose(1, 2)[1], values.transpose(1, 2)[1]),
    ):  # fmt: skip
        assert one.source.operand is not None
        assert torch.equal(one + 0, expected)
    assert torch.equal(read[0, 1] + 0, values[0, 1])
    assert torch.equal(read[torch.tensor([2, 0])] + 0, values[[2, 0]])
