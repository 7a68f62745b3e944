# SPDX-License-Identifier: BSD-3-Clause
"""Codes as parameters: FSDP2 shards them (two processes, one spawn), and nothing else changes."""

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException

import blockscale as bs
from tests.support import fresh

WORLD = 2
FORMATS = ("mxfp4", "nvfp4", "int4", "int8_channel")


class Adapted(nn.Module):
    """A layer with a LoRA of its own, as adapters have it."""

    def __init__(self, layer: nn.Module, features: int):
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(features, 4, bias=False), nn.Linear(4, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def model(fmt: str, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(2)])
    bs.quantize_(net, fmt)
    return net


def inputs() -> Tensor:
    return torch.randn(8, 256, generator=torch.Generator().manual_seed(1))


def bytes_of(net: nn.Module) -> int:
    return sum(
        getattr(p, "to_local", lambda p=p: p)().nbytes for p in (*net.parameters(), *net.buffers())
    )


def shard(net: nn.Module, mesh: Any, **options: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in net:
        fully_shard(each, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)


def sharded(mesh: Any) -> dict[str, Any]:
    found = {}
    for fmt in FORMATS:
        net = model(fmt)
        whole, bytes_before = net(inputs()), bytes_of(net)
        shard(bs.parallel.as_parameters_(net), mesh)
        share = bytes_of(net) / bytes_before
        found[fmt] = (
            share,
            torch.equal(net(inputs()), whole),
            _words(lambda net=net: net[0].qweight.operand),
        )
    return found


def _words(call: Any) -> str:
    try:
        call()
    except (RuntimeError, ValueError, CheckpointException) as error:
        return str(error)
    return ""


def trained(rank: int, mesh: Any | None) -> list[Tensor]:
    """The losses of LoRA over codes; each rank has half of the rows."""
    net = nn.Sequential(*[Adapted(layer, 256) for layer in model("mxfp4")])
    torch.manual_seed(3)
    for each in net:
        nn.init.normal_(each.down.weight, std=0.1)
        nn.init.normal_(each.up.weight, std=0.1)
    if mesh is not None:
        shard(bs.parallel.as_parameters_(net), mesh)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)
    x = inputs() if mesh is None else inputs().chunk(WORLD)[rank]
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
    adapters = [net[0].down.weight, net[1].up.weight]
    return [getattr(w, "full_tensor", lambda w=w: w)().detach() for w in adapters]


def checkpointed(folder: str, mesh: Any) -> dict[str, Any]:
    """A sharded model's state through torch.distributed.checkpoint, and one of another format."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    net = bs.parallel.as_parameters_(model("mxfp4"))
    shard(net, mesh)
    dcp.save(get_model_state_dict(net), checkpoint_id=f"{folder}/state")
    again = model("mxfp4")
    for part in again.state_dict().values():
        part.zero_() if part.dtype != torch.uint8 or part.ndim < 3 else None
    shard(bs.parallel.as_parameters_(again), mesh)
    state = get_model_state_dict(again)
    dcp.load(state, checkpoint_id=f"{folder}/state")
    set_model_state_dict(again, state)
    other = model("int4:group32:e8m0/floor")
    before = [p.clone() for p in other.state_dict().values()]
    shard(bs.parallel.as_parameters_(other), mesh)
    told = _words(lambda: dcp.load(get_model_state_dict(other), checkpoint_id=f"{folder}/state"))
    full = [getattr(p, "full_tensor", lambda p=p: p)() for p in other.state_dict().values()]
    kept = all(torch.equal(a, b) for a, b in zip(before, full, strict=True))
    return {
        "same": torch.equal(again(inputs()), model("mxfp4")(inputs())),
        "told": told,
        "kept": kept,
    }


def mixed(mesh: Any) -> str:
    """Mixed precision would round scales."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    net = bs.parallel.as_parameters_(model("int4"))
    shard(net, mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return _words(lambda: net(inputs()))


def late(mesh: Any) -> dict[str, Any]:
    """Codes that were buffers when FSDP2 came, and the call that should have been before it."""
    net = model("mxfp4")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shard(net, mesh)
    return {
        "told": [str(each.message) for each in told],
        "files": [each.filename for each in told],
        "refused": _words(lambda: bs.parallel.as_parameters_(net)),
        "same": torch.equal(net(inputs()), model("mxfp4")(inputs())),
    }


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=WORLD)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
        found = {"sharded": sharded(mesh), "trained": trained(rank, mesh), "cast": mixed(mesh)}
        found |= {"state": checkpointed(folder, mesh), "late": late(mesh)}
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def work_of_three(rank: int, folder: str) -> None:
    """What two processes saved, on three, which save it again."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    torch.set_num_threads(1)
    meet = f"file://{folder}/meet3"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=3)
    try:
        net = model("mxfp4", seed=1)
        shard(bs.parallel.as_parameters_(net), dist.device_mesh.init_device_mesh("cpu", (3,)))
        state = get_model_state_dict(net)
        dcp.load(state, checkpoint_id=f"{folder}/state")
        set_model_state_dict(net, state)
        dcp.save(get_model_state_dict(net), checkpoint_id=f"{folder}/state of three")
        torch.save(net(inputs()), f"{folder}/three {rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    fresh.ranks(work, folder, WORLD)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each process found, from one spawn."""
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_fsdp_shards_codes_and_scales(found: list[dict[str, Any]], fmt: str) -> None:
    for each in found:
        share, equal, told = each["sharded"][fmt]
        assert share <= 0.51 and equal
        assert "was read while its codes is sharded" in told


@pytest.mark.slow
def test_adapters_on_shards_train_as_on_one_process(found: list[dict[str, Any]]) -> None:
    for each in found:
        for mine, theirs in zip(each["trained"], trained(0, None), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_cast_of_scales_is_refused(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert "scale of a weight in int4:group128:fp32 was cast to torch.bfloat16" in each["cast"]


def test_codes_that_no_call_made_parameters_are_told(found: list[dict[str, Any]]) -> None:
    """FSDP2 shards none of them: a warning where fully_shard was called, and no call after it."""
    for each in found:
        told = each["late"]["told"]
        assert len(told) == 2 and all("bs.parallel.as_parameters_(model)" in text for text in told)
        assert {*each["late"]["files"]} == {__file__} and each["late"]["same"]
        assert "such as '0.weight', and did not shard them" in each["late"]["refused"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_of_shards(found: list[dict[str, Any]], folder: Path) -> None:
    """Two processes to two, and to one; another format is refused before anything is written."""
    for each in found:
        assert each["state"]["same"] and each["state"]["kept"] and each["state"]["told"]
    same_in_one(folder / "state")


def same_in_one(checkpoint: Path) -> None:
    """One process reads what several wrote."""
    import torch.distributed.checkpoint as dcp

    one = model("mxfp4")
    state = {n: torch.zeros_like(t) for n, t in one.state_dict().items() if "extra" not in n}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    assert all(torch.equal(state[n], t) for n, t in one.state_dict().items() if n in state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_of_two_on_three_and_on_one(found: list[dict[str, Any]], folder: Path) -> None:
    assert all(each["state"]["same"] for each in found)
    fresh.ranks(work_of_three, folder, 3)
    whole = model("mxfp4")(inputs())
    for rank in range(3):
        assert torch.equal(torch.load(folder / f"three {rank}.pt"), whole)
    same_in_one(folder / "state of three")


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_else_changes(fmt: str, tmp_path: Path) -> None:
    net, x = model(fmt), inputs()
    whole, state = net(x), net.state_dict()
    bs.parallel.as_parameters_(net)
    assert torch.equal(net(x), whole)
    assert {n: t.dtype for n, t in net.state_dict().items()} == {
        n: t.dtype for n, t in state.items()
    }
    assert [n for n, _ in net.named_buffers()] == [] and not any(
        p.requires_grad for p in net.parameters()
    )
    assert torch.equal(copy.deepcopy(net)(x), whole)
    net.to(torch.bfloat16)
    assert all(torch.equal(t, state[n]) for n, t in net.state_dict().items())
    stream = io.BytesIO()
    torch.save(net, stream)
    stream.seek(0)
    assert torch.equal(torch.load(stream, weights_only=False)(x), whole)
    fresh_one = model(fmt)
    fresh_one.load_state_dict(net.state_dict())
    net.load_state_dict(fresh_one.state_dict())
    bs.save(net, tmp_path / "a.safetensors")
    loaded = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(2)])
    bs.load(loaded, tmp_path / "a.safetensors")
    assert torch.equal(loaded(x), whole)
    with pytest.raises(RuntimeError, match="fixed"):
        net[0].weight.mul_(3)
    assert torch.equal(
        net[0].weight.mul_(2).dequantize(torch.float32), fresh_one[0].dequantize_weight() * 2
    )


def _dtype(net: nn.Module) -> None:
    """Models take their inputs' dtype from their first parameter."""
    assert next(net.parameters()).is_floating_point()


def _adam(net: nn.Module) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.1)
    net(inputs()).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()


def _lbfgs(net: nn.Module) -> None:
    def closure() -> float:
        loss = net(inputs()).square().mean()
        loss.backward()
        return loss.item()

    torch.optim.LBFGS(net.parameters(), max_iter=2).step(closure)


def _averages(net: nn.Module) -> None:
    from torch.optim.swa_utils import AveragedModel

    AveragedModel(net).update_parameters(net)


def _averages_by_hand(net: nn.Module) -> None:
    with torch.no_grad():
        for mean, own in zip(copy.deepcopy(net).parameters(), net.parameters(), strict=True):
            mean.mul_(0.9).add_(own, alpha=0.1)


def _vector(net: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(net.parameters())
    nn.utils.vector_to_parameters(vector, net.parameters())


def _gradients(net: nn.Module) -> None:
    def loss(own: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, own, (inputs(),)).square().mean()

    torch.func.grad(loss)(dict(net.named_parameters()))


def _cast(net: nn.Module) -> None:
    """What peft's prepare_model_for_kbit_training does, and old recipes of mixed precision."""
    for each in net.parameters():
        if each.dtype in (torch.float16, torch.bfloat16):
            each.data = each.data.to(torch.float32)


def _initialize(net: nn.Module) -> None:
    for each in net.parameters():
        if each.ndim > 1:
            nn.init.xavier_uniform_(each)


# Programs that go over a model's parameters: all do with codes as buffers what they do with a float
# model. With codes as parameters those fail whose error stands here, which is why an engine has to
# ask for them (docs/scale.md).
OVER_PARAMETERS: dict[str, tuple[Any, str | None]] = {
    "the first one's dtype": (_dtype, "AssertionError"),
    "requires_grad_(True)": (lambda net: net.requires_grad_(True), "only Tensors of floating"),
    "AdamW and clip_grad_norm_": (_adam, None),
    "LBFGS": (_lbfgs, "result type Float can't be cast"),
    "AveragedModel": (_averages, None),
    "averages by hand": (_averages_by_hand, "result type Float can't be cast"),
    "parameters_to_vector": (_vector, "was cast to torch.float32"),
    "torch.func.grad": (_gradients, "only Tensors of floating"),
    "prepare_model_for_kbit_training": (_cast, "was cast to torch.float32"),
    "initialization": (_initialize, "not implemented for 'Byte'"),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", OVER_PARAMETERS)
def test_programs_that_go_over_parameters(name: str) -> None:
    call, error = OVER_PARAMETERS[name]

    def run(net: nn.Module) -> Tensor:
        net.append(nn.LayerNorm(256))
        call(net)
        return net(inputs())

    net = model("int4:group32:fp16")
    codes = {n: t.clone() for n, t in net.state_dict().items()}
    assert run(net).isfinite().all()
    assert all(torch.equal(t, codes[n]) for n, t in net.state_dict().items() if n in codes)
    frozen = bs.parallel.as_parameters_(model("int4:group32:fp16"))
    if error is None:
        assert run(frozen).isfinite().all()
    else:
        with pytest.raises((RuntimeError, AssertionError, NotImplementedError)) as told:
            run(frozen)
        assert error in f"{type(told.value).__name__}: {told.value}"


@pytest.mark.slow
def test_programs_of_it() -> None:
    net, x = bs.parallel.as_parameters_(model("mxfp4")), inputs()
    exported = torch.export.export(net, (x,)).module()
    assert torch.equal(exported(x), net(x))
    assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(x), net(x))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no quantized weights: call bs.quantize_"):
        bs.parallel.as_parameters_(nn.Linear(4, 4))
    net = model("mxfp4")
    with pytest.raises(
        RuntimeError, match=r"FSDP2 of torch 2\.11\.0\+cu130 takes no parameters of bytes"
    ):
        bs.parallel.as_parameters_(net, torch_version="2.11.0+cu130")
    assert not list(net.parameters())
