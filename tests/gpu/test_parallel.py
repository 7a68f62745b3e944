# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallel, FSDP2, transformers' plans and peft over two GPUs (NCCL).

Needs CUDA: `pytest -m gpu tests/gpu`.

The same on the CPU: tests/parallel/.
"""

import os
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


# transformers' own plans, and adapters on the parts.

MODELS = ("llama", "moe")


def work_of_transformers(rank: int, folder: str) -> None:
    import transformers as hf
    from transformers.distributed.configuration_utils import DistributedConfig

    import blockscale.integrations.transformers  # noqa: F401 - registers
    from tests.support.dealt_models import ids

    torch.cuda.set_device(rank)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    meet = f"file://{folder}/meet"
    dist.init_process_group("nccl", init_method=meet, rank=rank, world_size=WORLD)
    found: dict[Any, Any] = {}
    try:
        for kind in MODELS:
            load = hf.AutoModelForCausalLM.from_pretrained
            own = {"dtype": torch.bfloat16, "device_map": {"": rank}}
            whole = load(f"{folder}/{kind}", **own)
            asked = DistributedConfig(tp_plan="auto")
            cut = load(f"{folder}/{kind}", dtype=torch.bfloat16, distributed_config=asked)
            with torch.no_grad():
                y, z = (model(ids().cuda()).logits.float() for model in (whole, cut))
            options = {"max_new_tokens": 8, "do_sample": False}
            tokens = [model.generate(ids().cuda()[:1], **options) for model in (whole, cut)]
            nbytes = [sum(t.nbytes for t in (*m.parameters(), *m.buffers())) for m in (whole, cut)]
            found[kind] = {
                "off": float((y - z).norm() / y.norm()), "share": nbytes[1] / nbytes[0],
                "tokens": float((tokens[0] == tokens[1]).float().mean()),
                "device": cut.device.index,
            }  # fmt: skip
            if kind == MODELS[0]:
                found["adapters"] = adapted(cut, rank)
        torch.save(found, f"{folder}/transformers {rank}.pt")
    finally:
        dist.destroy_process_group()


def adapted(model: Any, rank: int) -> dict[str, torch.Tensor] | None:
    """A step of LoRA beside the parts; each process draws other adapters. None without peft."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        return None

    import blockscale.integrations.peft  # noqa: F401 - registers
    from tests.support.dealt_models import ids

    torch.manual_seed(rank)
    targets = ["q_proj", "o_proj", "down_proj"]
    tuned = get_peft_model(model, LoraConfig(target_modules=targets, r=2, init_lora_weights=False))
    own = [each for each in tuned.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(own, lr=0.1)
    tuned(ids().cuda()).logits.float().square().mean().backward()
    torch.nn.utils.clip_grad_norm_(own, 1.0)
    optimizer.step()
    return {n: p.detach().cpu() for n, p in tuned.named_parameters() if p.requires_grad}


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    if torch.cuda.device_count() < WORLD:
        pytest.skip("needs two GPUs")
    pytest.importorskip("transformers")
    from tests.support import dealt_models

    folder = tmp_path_factory.mktemp("dealt")
    for kind in MODELS:
        torch.manual_seed(5)
        model = getattr(dealt_models, kind)().eval()
        model.save_pretrained(folder / f"{kind}-float")
        bs.quantize_directory(folder / f"{kind}-float", folder / kind, "mxfp4")
    fresh.ranks(work_of_transformers, folder, WORLD)
    return [torch.load(folder / f"transformers {rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("kind", MODELS)
def test_plans_of_transformers(dealt: list[dict[Any, Any]], kind: str) -> None:
    for rank, each in enumerate(dealt):
        assert each[kind]["off"] < 2e-2 and each[kind]["share"] < 0.65
        assert each[kind]["tokens"] > 0.8 and each[kind]["device"] == rank


def test_adapters_are_the_same_on_both(dealt: list[dict[Any, Any]]) -> None:
    first, other = (each["adapters"] for each in dealt)
    if first is None:
        pytest.skip("needs peft")
    assert len(first) == 12
    assert all(torch.equal(first[name], each) for name, each in other.items())
