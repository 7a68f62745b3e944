# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallel and FSDP2 over two GPUs (NCCL). Needs CUDA: `pytest -m gpu tests/gpu`.

The same on the CPU: tests/parallel/.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import blockscale as bs
from tests.support import fresh

pytestmark = pytest.mark.gpu
WORLD = 2
RECIPES: dict[str, bs.Recipe] = {
    "mxfp4": bs.Recipe("mxfp4"),
    "nvfp4": bs.Recipe("nvfp4", "nvfp4"),
    "int4": bs.Recipe("int4"),
    "int8": bs.Recipe("int8_channel", "int8_token"),
    "mxfp8": bs.Recipe("mxfp8", "mxfp8"),
}


def pair(recipe: str, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 3584), nn.GELU(), nn.Linear(3584, 1024))
    net = net.to("cuda", dtype)
    bs.quantize_(net, RECIPES[recipe])
    return net


def rows(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(64, 1024, generator=torch.Generator().manual_seed(1)).to("cuda", dtype)


def tensor_parallel(mesh: Any, recipe: str, dtype: torch.dtype) -> tuple[bool, float]:
    """Whether the first layer has the bits of one process, and how far both are off."""
    one, x = pair(recipe, dtype), rows(dtype)
    first, both = one[0](x), one(x)
    bs.parallel.shard_(one, mesh, {"0": "colwise", "2": "rowwise"})
    own = first.chunk(WORLD, -1)[mesh.get_local_rank()]
    off = (one(x).float() - both.float()).norm() / both.float().norm()
    return torch.equal(one[0](x), own), float(off)


def sharded(mesh: Any, recipe: str) -> tuple[bool, float]:
    """Whether FSDP2's forward is the same, and the share of the bytes of a process."""
    from torch.distributed.fsdp import fully_shard

    net, x = pair(recipe, torch.bfloat16), rows(torch.bfloat16)
    whole = net(x)
    weights = [layer.qweight for layer in (net[0], net[2])]
    before = sum(weight.nbytes for weight in weights)
    bs.parallel.as_parameters_(net)
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    with torch.no_grad():
        equal = torch.equal(net(x), whole)
    net.reshard()
    return equal, sum(weight.nbytes for weight in weights) / before


def work(rank: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    meet = f"file://{folder}/meet"
    dist.init_process_group("nccl", init_method=meet, rank=rank, world_size=WORLD)
    try:
        mesh = dist.device_mesh.init_device_mesh("cuda", (WORLD,))
        found: dict[Any, Any] = {}
        for recipe in RECIPES:
            for dtype in (torch.float32, torch.bfloat16):
                found[recipe, dtype] = tensor_parallel(mesh, recipe, dtype)
            try:
                found[recipe] = sharded(mesh, recipe)
            except RuntimeError as error:
                found[recipe] = str(error)
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    if torch.cuda.device_count() < WORLD:
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("nccl")
    fresh.ranks(work, folder, WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pair_of_layers(found: list[dict[Any, Any]], recipe: str, dtype: torch.dtype) -> None:
    """Column-wise the bits of one process; sums in another order, in the dtype of x."""
    for each in found:
        equal, off = each[recipe, dtype]
        assert equal and off < (1e-5 if dtype is torch.float32 else 5e-3)


@pytest.mark.parametrize("recipe", RECIPES)
def test_fsdp(found: list[dict[Any, Any]], recipe: str) -> None:
    """Or, before torch 2.12, the error that says which torch."""
    for each in found:
        if isinstance(each[recipe], str):
            assert "takes no parameters of bytes" in each[recipe]
        else:
            equal, share = each[recipe]
            assert equal and share <= 0.51
