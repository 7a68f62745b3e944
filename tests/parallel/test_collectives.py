# SPDX-License-Identifier: BSD-3-Clause
"""Sums, gathered parts and merged ranges over three processes (gloo, one spawn), with gradients."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import blockscale as bs
from blockscale.core import shared_scales
from blockscale.core.cuts import deal, share
from blockscale.parallel.collectives import join_parts, merge, shared, sharing_last, summed
from tests.support import fresh
from tests.support.shares import same, weight

WORLD = 3
FORMATS = ("nvfp4", "int8_token", "int4:group64:fp32:asym", "ternary", "mxfp4")


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=WORLD)
    try:
        x = torch.full((2, 3), rank + 1.0, requires_grad=True)
        total = summed(x * 2, None)
        places = (0, 1, 4, 5)
        own = torch.full((2, places[rank + 1] - places[rank]), float(rank), requires_grad=True)
        whole = join_parts(own, places, rank, None)
        alike = torch.ones(2, requires_grad=True)
        used = shared(alike, None) * (rank + 1)
        (total.sum() + (whole * torch.arange(5.0)).sum() + used.sum()).backward()
        found: dict[str, Any] = {"sum": (total.detach(), x.grad), "shared": alike.grad}
        layer = torch.nn.Linear(2, 5, bias=False)
        layer.register_forward_hook(sharing_last(2, None))
        y = layer(torch.ones(2))
        ((shared(y[:3], None).sum() + y[3:].sum()) * (rank + 1)).backward()
        found["turned"] = layer.weight.grad
        found |= {"whole": (whole.detach(), own.grad), "parts": parts(rank)}
        found["plain"] = summed(torch.ones(2) * rank, None), shared(torch.ones(2), None)
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def parts(rank: int) -> bool:
    """Whether the scales of a process's part are those of the whole tensor."""
    x, equal = weight(48, 384), True
    for fmt in FORMATS:
        for dim in (0, 1):
            own = share(x.shape, dim, deal(x.shape[dim], WORLD, 8), rank)
            some = x.narrow(dim, own.start, own.stop - own.start)
            qparams, refined = shared_scales.choose(some, bs.parse(fmt), own, merge(None))
            whole = bs.quantize(x, fmt).narrow(dim, own.start, own.stop - own.start)
            ours = bs.QTensor(whole.packed, qparams, refined, whole.size)
            equal = equal and same(ours, whole)
    return equal


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("collectives")
    fresh.ranks(work, folder, WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.slow
def test_sums_and_their_gradients(found: list[dict[str, Any]]) -> None:
    for each in found:
        total, gradient = each["sum"]
        assert torch.equal(total, torch.full((2, 3), 12.0))
        assert torch.equal(gradient, torch.full((2, 3), 2.0))
        assert torch.equal(each["shared"], torch.full((2,), 6.0))
        total, alone = each["plain"]
        assert torch.equal(total, torch.full((2,), 3.0)) and torch.equal(alone, torch.ones(2))


@pytest.mark.slow
def test_parts_of_other_sizes_are_gathered(found: list[dict[str, Any]]) -> None:
    gradients = [[0.0], [1.0, 2.0, 3.0], [4.0]]
    for each, gradient in zip(found, gradients, strict=True):
        whole, own = each["whole"]
        assert whole.tolist() == [[0.0, 1.0, 1.0, 1.0, 2.0]] * 2
        assert own.tolist() == [gradient] * 2


def test_scales_over_processes_are_those_of_one(found: list[dict[str, Any]]) -> None:
    assert all(each["parts"] for each in found)


def test_gradients_to_outputs_that_no_layer_takes(found: list[dict[str, Any]]) -> None:
    """Of a whole layer, some of whose outputs a column-wise layer shares and some nothing does."""
    for each in found:
        assert torch.equal(each["turned"], torch.full((5, 2), 6.0))
