# SPDX-License-Identifier: BSD-3-Clause
"""The target `reference`: the reference's bits, whatever is around."""

import copy

import pytest
import torch

import blockscale as bs
from blockscale.graph.lowering import lower
from blockscale.graph.program import exported
from tests.graph.lowering.programs import FORMATS, layers, network
from tests.support import fresh

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_the_references_bits_whatever_is_chosen(kind):
    graph, x = layers(kind)
    model, program, images = network(kind)
    lowered, whole = lower(graph, "reference"), lower(program, "reference")
    for rows in (4, 2, 7):
        x, images = torch.randn(rows, 64), torch.randn(rows, 3, 8, 8)
        with bs.use("reference"):
            y, z = graph(x), model(images)
        for choice in ("auto", "cpu", "reference"):
            with bs.use(choice, fallback=True):
                assert torch.equal(lowered(x), y)
                assert torch.equal(whole(images), z)


def test_copies_and_programs_keep_them():
    graph, x = layers("int4 groups")  # whose kernels sum in another order
    with bs.use("reference"):
        y = graph(x)
    lowered = lower(graph, "reference")
    assert not torch.equal(graph(x), y), "the kernels gave the reference's bits by chance"
    assert torch.equal(copy.deepcopy(lowered)(x), y)
    assert torch.equal(exported(lowered).module()(x), y)


@pytest.mark.slow
def test_saved_and_loaded_by_another_process(tmp_path):
    graph, x = layers("int4 groups")
    with bs.use("reference"):
        y = graph(x)
    path = tmp_path / "lowered.pt2"
    torch.export.save(exported(lower(graph, "reference")), path)
    torch.save((x, y), tmp_path / "x.pt")
    code = (
        "import sys, torch, blockscale\n"
        "x, y = torch.load(sys.argv[2])\n"
        "assert torch.equal(torch.export.load(sys.argv[1]).module()(x), y)"
    )
    fresh.run(code, path, tmp_path / "x.pt", warn="ignore", ready=fresh.WITH_OURS, check=True)
