# SPDX-License-Identifier: BSD-3-Clause
"""Two processes (gloo, one spawn), and models that are not whole: what would differ is refused."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import blockscale as bs
from blockscale.layers import guards
from blockscale.layers.guards import agreeing, check_group, processes
from blockscale.layers.model import sent_by_no_forward
from tests.support import fresh

WORLD = 2
RECIPE = bs.Recipe("int8", "int8:tensor:fp32")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))


def batches(seed: int) -> list[Tensor]:
    return [torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))]


class Around(nn.Module):
    """A model inside of another one, as adapters and tasks have it."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(32, 4)
        self.register_buffer("means", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.inner(x))
        return y


def words(call: Any) -> str:
    """What a call is refused with; empty if it is not."""
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def codes_of(found: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in found.state_dict().values()]


def calibrated(rank: int) -> dict[str, Any]:
    """bs.calibrate where processes see other batches, and where they see the same."""
    found: dict[str, Any] = {}
    cases = {"unsaid": (rank, None), "local": (rank, "local"), "same": (5, "same")}
    for name, (seed, group) in (cases | {"not same": (rank, "same")}).items():
        net = model()
        told = words(lambda: bs.calibrate(net, batches(seed), RECIPE, progress=False, group=group))  # noqa: B023
        found[name] = told, codes_of(net)
    return found


def sent(rank: int) -> dict[str, Any]:
    """The bytes of buffers that DistributedDataParallel sends at a forward."""
    del rank
    inner = model()
    bs.quantize_(inner, "mxfp4")
    around = Around(inner)
    ddp = DistributedDataParallel(around)
    ddp(torch.randn(2, 32)).sum().backward()
    copied = DistributedDataParallel(copy.deepcopy(around))
    return {"sent": [sum(b.nbytes for b in each.modules_buffers) for each in (ddp, copied)]}


def sharded(rank: int) -> dict[str, Any]:
    """What is said of models that FSDP2 has sharded."""
    from torch.distributed.fsdp import fully_shard

    del rank
    net = model()
    mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    calls = {
        "bs.quantize_": lambda: bs.quantize_(net, "mxfp4"),
        "bs.calibrate": lambda: bs.calibrate(net, batches(0), RECIPE, group="local"),
        "bs.prepare_qat": lambda: bs.prepare_qat(net, "mxfp4"),
        "bs.save": lambda: bs.save(net, "nowhere.safetensors"),
        "bs.load": lambda: bs.load(net, "nowhere.safetensors"),
    }
    return {"sharded": {name: words(call) for name, call in calls.items()}}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=WORLD)
    try:
        found = calibrated(rank) | sent(rank) | sharded(rank)
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process found, from one spawn."""
    folder = tmp_path_factory.mktemp("processes")
    fresh.ranks(work, folder, WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )


def test_calibrating_in_a_group_is_refused(found: list[dict[str, Any]]) -> None:
    for told, codes in (each["unsaid"] for each in found):
        assert "a group of 2 processes" in told and "group='same'" in told
        assert equal(codes, codes_of(model()))


def test_local_models_differ(found: list[dict[str, Any]]) -> None:
    for rank, (told, codes) in enumerate(each["local"] for each in found):
        alone = model()
        bs.calibrate(alone, batches(rank), RECIPE, progress=False)
        assert told == "" and equal(codes, codes_of(alone))
    assert not equal(found[0]["local"][1], found[1]["local"][1])


def test_the_same_batches_give_the_same_model(found: list[dict[str, Any]]) -> None:
    alone = model()
    bs.calibrate(alone, batches(5), RECIPE, progress=False)
    assert all(each["same"][0] == "" and equal(each["same"][1], codes_of(alone)) for each in found)


def test_what_is_not_the_same_is_found_and_undone(found: list[dict[str, Any]]) -> None:
    for rank, (told, codes) in enumerate(each["not same"] for each in found):
        assert "processes 0 and 1 have made other codes" in told
        assert f"this is process {rank}" in told
        assert equal(codes, codes_of(model()))


def test_no_forward_sends_codes(found: list[dict[str, Any]]) -> None:
    """What is left are the three means of the module around the quantized model."""
    assert all(each["sent"] == [12, 12] for each in found)


def test_sharded_models_are_refused(found: list[dict[str, Any]]) -> None:
    for each in found:
        for called, told in each["sharded"].items():
            assert told.startswith(f"{called}: 4 of the model's 4 tensors are shards")
            assert "'0.weight' (a DTensor: S(0))" in told and "before fully_shard" in told


def test_a_dispatched_model_is_refused_and_stays(recwarn: pytest.WarningsRecorder) -> None:
    from accelerate import cpu_offload
    from accelerate.hooks import remove_hook_from_submodules

    net, expected = model(), codes_of(model())
    cpu_offload(net)
    for call in (
        lambda: bs.quantize_(net, "mxfp4"),
        lambda: bs.calibrate(net, batches(0), RECIPE),
        lambda: bs.prepare_qat(net, "mxfp4"),
        lambda: bs.load(net, "nowhere"),
    ):
        told = words(call)
        assert "accelerate moves 2 of the model's layers" in told and "such as '0'" in told
        assert "remove_hook_from_submodules(model)" in told
    remove_hook_from_submodules(net)
    assert equal(codes_of(net), expected) and not recwarn.list
    assert bs.qat.ledger(bs.prepare_qat(copy.deepcopy(net), "mxfp4")).quantized
    bs.quantize_(net, "mxfp4", strict=True)
    cpu_offload(net)
    bs.quantize_(net, "mxfp4")  # nothing is left to do, and nothing to refuse


def test_what_may_be_said_of_a_group() -> None:
    assert processes() == 1
    for group in (None, "same", "local"):
        check_group(group, "bs.calibrate")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"group must be a process group.*'same' \(every.*None, got 'each'"
    ):
        bs.calibrate(model(), batches(0), RECIPE, group="each")  # type: ignore[arg-type]
    with agreeing(model(), "same"):
        pass


def test_a_prepared_graph_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "processes", lambda: WORLD)
    for group, reason in ((None, "a group of 2 processes"), ("same", "no codes yet to compare")):
        with pytest.raises(ValueError, match=reason):
            check_group(group, "bs.calibrate", compared=False)  # type: ignore[arg-type]
    check_group("local", "bs.calibrate", compared=False)


def test_names_to_ignore() -> None:
    """Those that were there stay; a copy and a pickle name their own; adapters come in between."""
    net = model()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.bias"])
    bs.quantize_(net, "mxfp4")
    assert {"0.bias", "0.weight.codes", "2.weight.scale"} <= set(ignored(net))
    sent_by_no_forward(net)
    assert sorted(ignored(net)) == sorted({*ignored(net)})
    stream = io.BytesIO()
    torch.save(net, stream)
    stream.seek(0)
    again = torch.load(stream, weights_only=False)
    del net[2]
    assert {"2.weight.codes"} <= set(ignored(again)) and "2.weight.codes" not in ignored(net)
    again[0] = nn.Sequential(again[0])
    assert "0.0.weight.codes" in ignored(again)
    assert "inner.0.0.weight.codes" in ignored(Around(again))


def ignored(net: Any) -> list[str]:
    return list(net._ddp_params_and_buffers_to_ignore)


def test_under_an_adapter() -> None:
    import peft

    import blockscale.integrations.peft  # noqa: F401

    net = model()
    bs.quantize_(net, "mxfp4")
    wrapped = peft.get_peft_model(net, peft.LoraConfig(target_modules=["0"]))
    buffers = [name for name, _ in wrapped.named_buffers() if "weight" in name]
    assert buffers and set(buffers) <= set(ignored(wrapped))


def test_every_way_to_a_quantized_model(tmp_path: Path) -> None:
    net = model()
    bs.quantize_(net, "mxfp4")
    bs.save(net, tmp_path / "m")
    trained = bs.convert(bs.prepare_qat(model(), "mxfp4"))
    for each in (bs.load(model(), tmp_path / "m"), trained):
        assert {"0.weight.codes", "2.weight.codes"} <= set(ignored(each))
