# SPDX-License-Identifier: BSD-3-Clause
"""Two processes: DistributedDataParallel and FSDP2 train what one process does on all the data."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import blockscale as bs
from tests.support import fresh
from tests.support.qat_models import train

WORLD = 2
RECIPE = bs.Recipe("int4:group16:fp32", "int8", "mxfp8")


def model(seen: list[Tensor]) -> nn.Module:
    """Prepared, with the scales of its inputs from `seen` fixed."""
    torch.manual_seed(5)
    layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    bs.prepare_qat(layers, RECIPE, learn={"weight": "steps"}, observer="min_max")
    with torch.no_grad():
        for x in seen:
            layers(x)
    bs.qat.switch(layers, observe=False)
    return layers


def batches() -> list[Tensor]:
    """Each process gets one half of the rows of every batch."""
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(8, 16, generator=generator) for _ in range(3)]


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
    )
    try:
        mine = [x.chunk(WORLD)[rank] for x in batches()]
        found = {"ddp": ddp(mine), "fsdp": fsdp(mine), "seen": observed(mine)}
        found |= {"begun": begun(rank, mine), "late": begun(rank, mine, wrap=True)}
        found["sharded"] = sharded(mine)
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def observed(mine: list[Tensor]) -> dict[str, Tensor]:
    inner = model(mine)
    bs.qat.synchronize(inner)
    return dict(inner[0].input_quantizer.state_dict())


def learning() -> nn.Module:
    """Prepared, with scales of its inputs that are to be learned."""
    torch.manual_seed(5)
    recipe = bs.Recipe("int8:channel0:fp32", "int8:tensor:pow2/ceil")
    return bs.prepare_qat(nn.Sequential(nn.Linear(16, 8)), recipe, learn={"input": "thresholds"})


def begun(rank: int, mine: list[Tensor], *, wrap: bool = False) -> Tensor:
    """The origins of scales, where the first process sees zeros before anything else."""
    inner = learning()
    first = torch.zeros_like(mine[0]) if rank == 0 else mine[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if wrap:
            train(nn.parallel.DistributedDataParallel(inner), [first, *mine[1:], mine[0]], 0.0)
        else:
            inner(first)
            bs.qat.synchronize(inner)
    return inner[0].input_quantizer.learned.origin.clone()


def sharded(mine: list[Tensor]) -> dict[str, Tensor]:
    """Scales that begin in forward passes of FSDP2: of inputs, and of rows that were zero."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    inner = nn.Sequential(nn.Linear(16, 8))
    with torch.no_grad():
        inner[0].weight[4:] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe = bs.Recipe("int8:channel0:pow2/ceil", "int8:tensor:pow2/ceil")
        bs.prepare_qat(inner, recipe, learn="thresholds")
    fully_shard(inner, mesh=dist.device_mesh.init_device_mesh("cpu", (WORLD,)))
    train(inner, mine)
    bs.qat.synchronize(inner)
    weight, taken = (inner[0].quantizers()[i].learned for i in (0, 1))
    return {"weight": weight.origin.clone(), "input": taken.origin.clone()}


def ddp(mine: list[Tensor]) -> dict[str, Tensor]:
    inner = model(batches())
    wrapped = nn.parallel.DistributedDataParallel(inner)
    with pytest.raises(ValueError, match=r"ddp\.module"):
        bs.convert(wrapped)
    train(wrapped, mine)
    return finished(inner, inner.state_dict())


def fsdp(mine: list[Tensor]) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    inner = model(batches())
    for layer in (inner[0], inner[2], inner):
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (WORLD,)))
    train(inner, mine)
    with pytest.raises(ValueError, match="is sharded: gather the state"):
        bs.convert(inner)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
    return finished(model([]), get_model_state_dict(inner, options=options))


def finished(whole: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state, and what the converted model makes of a batch."""
    state = copy.deepcopy(state)
    whole.load_state_dict(state)
    with torch.no_grad():
        state["output"] = bs.convert(whole.eval())(batches()[0])
    return state


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path):
    fresh.ranks(work, tmp_path, WORLD)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)]
    alone = model(batches())
    train(alone, batches())
    wanted = alone.state_dict()
    for kind in ("ddp", "fsdp"):
        first, second = (each[kind] for each in found)
        assert first.keys() == second.keys() == {*wanted, "output"}
        for name, value in first.items():
            assert torch.equal(value, second[name]), (kind, name)
        for name in ("0.weight", "2.weight", "2.bias", "0.weight_quantizer.learned.step"):
            torch.testing.assert_close(first[name], wanted[name], rtol=1e-4, atol=1e-6)
    starts = [learning() for _ in range(WORLD)]
    starts[1](batches()[0].chunk(WORLD)[1])  # what the second process begins with
    starts[0](batches()[1].chunk(WORLD)[0])  # and the first, once it sees something
    for kind, which in (("begun", 1), ("late", 0)):
        wanted_origin = starts[which][0].input_quantizer.learned.origin
        assert torch.equal(found[0][kind], wanted_origin), kind
        assert torch.equal(found[1][kind], wanted_origin), kind
    assert all(bool(each.isfinite().all()) for each in found[0]["sharded"].values())
    for name, origin in found[0]["sharded"].items():
        assert torch.equal(origin, found[1]["sharded"][name]), name
    whole = model(batches())[0].input_quantizer.state_dict()
    for name in ("observer.samples", "observer.high", "stored.scale"):  # merged exactly
        assert torch.equal(found[0]["seen"][name], whole[name])
        assert torch.equal(found[1]["seen"][name], whole[name])
