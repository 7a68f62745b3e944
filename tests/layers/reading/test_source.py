# SPDX-License-Identifier: BSD-3-Clause
"""Where a read tensor has its numbers."""

import torch

import blockscale as bs
from blockscale.layers.reading.source import ReadTensor, Source, dense, traced, written
from blockscale.layers.reading.weight_tensor import WeightTensor
from blockscale.layers.store import QWeight


def test_floats_are_made_once() -> None:
    made = []

    def floats() -> torch.Tensor:
        made.append(1)
        return torch.ones(2, 3)

    source = Source(torch.Size((2, 3)), torch.float32, torch.device("cpu"), "fc.weight", None,
                    "plain", False, floats)  # fmt: skip
    read: ReadTensor = WeightTensor(source)
    assert made == []
    assert torch.equal(dense([read, {"a": read}])[1]["a"], torch.ones(2, 3))
    assert source.floats() is source.floats()
    assert made == [1]
    part = read.view_of(torch.Size((3,)), None, lambda: torch.zeros(3))
    assert (part.shape, part.source.name, part.source.owner) == ((3,), "fc.weight", None)


def test_what_is_said_of_writes() -> None:
    weight = QWeight.quantize(torch.randn(4, 32), bs.parse("mxfp4"))
    for name, pattern in (("a.fc.weight", "a.fc"), ("a.proj", "a.proj"), ("", "the layer")):
        weight.name = name
        assert f"skip=['{pattern}']" in str(written("zero_", weight.source()))


def test_only_traced_programs_get_floats() -> None:
    assert not traced()
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(traced())
        return x + int(traced())

    compiled = torch.compile(look, backend="eager")
    assert compiled(torch.zeros(1)).item() == 1
