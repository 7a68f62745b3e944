# SPDX-License-Identifier: BSD-3-Clause
"""LoRA beside parts of layers, in one process that has all parts.

Two processes: tests/integrations/transformers/test_dealing.py.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import blockscale as bs
from blockscale.parallel.parts import ColwiseLinear, RowwiseLinear
from tests.integrations.peft.training import QUIET

peft = pytest.importorskip("peft")
pytestmark = [*QUIET]

from blockscale.integrations.peft.float_layer import float_base, float_layer  # noqa: E402
from blockscale.integrations.peft.parts import PartDropout, part_of  # noqa: E402

PLANS = {
    "outputs and inputs": {"up": "colwise", "down": "rowwise"},
    "whole ones": {"up": "colwise_gather_output", "down": "rowwise_split_input"},
    "tables": {"table": "embedding_rowwise", "down": "rowwise"},
    "columns of tables": {"table": "embedding_colwise", "up": "colwise"},
}
IDS = torch.arange(24).reshape(2, 12)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of this process alone."""
    where = tmp_path_factory.mktemp("parts") / "meet"
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.up = nn.Embedding(24, 32), nn.Linear(32, 64)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.table(ids))))


def cut(net: nn.Module, mesh: Any, plan: str = "outputs and inputs") -> nn.Module:
    bs.parallel.shard_(net, mesh, PLANS[plan])
    return net


def quantized(recipe: Any = "mxfp4") -> nn.Module:
    net = Net()
    bs.quantize_(net, recipe)
    return net


def tuned(net: nn.Module, **options: Any) -> Any:
    torch.manual_seed(1)
    options = {"target_modules": ["table", "up", "down"], "init_lora_weights": False} | options
    return peft.get_peft_model(net, peft.LoraConfig(r=4, **options))


def trained(model: Any) -> tuple[Any, ...]:
    torch.manual_seed(2)
    y = model(IDS)
    y.square().mean().backward()
    return y.detach(), {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.some(3)
@pytest.mark.parametrize("recipe", [bs.Recipe("mxfp4"), bs.Recipe("mxfp4", skip=["up"])])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_one_process_has_the_bits_of_none(
    mesh: Any, plan: str, dropout: float, recipe: bs.Recipe
) -> None:
    if "up" in recipe.skip and PLANS[plan].get("up", "colwise") != "colwise":
        pytest.skip("of float layers no gathered outputs are built")
    wanted, gradients = trained(tuned(quantized(recipe), lora_dropout=dropout))
    model = tuned(cut(quantized(recipe), mesh, plan), lora_dropout=dropout)
    found, own = trained(model)
    assert torch.equal(found, wanted) and list(own) == list(gradients)
    assert all(torch.equal(own[name], each) for name, each in gradients.items())
    assert sum(isinstance(m, PartDropout) for m in model.modules()) <= (dropout > 0) * 2


def test_further_adapters_and_saved_ones(mesh: Any, tmp_path: Path) -> None:
    model = tuned(cut(quantized("int8_channel"), mesh))
    model.add_adapter("other", peft.LoraConfig(target_modules=["up"], r=2, use_rslora=True))
    model.set_adapter("other")
    assert isinstance(model.base_model.model.up.base_layer, ColwiseLinear)
    model.base_model.model.up.lora_B["other"].weight.data.normal_()
    before = model(IDS)
    model.save_pretrained(str(tmp_path))
    for net in (quantized("int8_channel"), cut(quantized("int8_channel"), mesh)):
        for meta in (False, True):
            again = copy.deepcopy(net)
            loaded = peft.PeftModel.from_pretrained(
                again, tmp_path / "other", low_cpu_mem_usage=meta
            )
            assert torch.equal(loaded(IDS), before)


def test_what_is_refused(mesh: Any) -> None:
    def part(recipe: Any = "mxfp4") -> Any:
        return cut(quantized(recipe), mesh)

    with pytest.raises(ValueError, match=r"up: init_lora_weights='pissa' looks at the whole"):
        tuned(part(), init_lora_weights="pissa")
    with pytest.raises(ValueError, match=r"DoraLinearVariant reads the whole weight"):
        tuned(part(), use_dora=True, target_modules=["up"])
    with pytest.raises(ValueError, match="modules_to_save names down, of which this process has"):
        tuned(part(), target_modules=["up"], modules_to_save=["down"])
    for recipe in ("mxfp4", bs.Recipe("mxfp4", skip=["up"])):
        model = tuned(part(recipe), target_modules=["up"])
        for merge in (model.merge_adapter, model.merge_and_unload, model.base_model.model.up.merge):
            with pytest.raises(ValueError, match="to merge an adapter, save it"):
                merge()
    layer: Any = part().up
    assert part_of(layer).length == 64 and part_of(nn.Linear(2, 2)) is None
    with pytest.raises(ValueError, match="this process has a part of the layer"):
        float_layer(layer)
    stand_in = float_base(layer)
    assert stand_in.weight.shape == (64, 32) and stand_in.weight.untyped_storage().nbytes() == 4
    assert float_base(part().down).bias is None and isinstance(part().down, RowwiseLinear)
