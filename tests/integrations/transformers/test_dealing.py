# SPDX-License-Identifier: BSD-3-Clause
"""Models that `from_pretrained` deals out to two processes (gloo), beside one process."""

import copy
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor
from transformers.distributed.configuration_utils import DistributedConfig

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig
from blockscale.integrations.transformers.dealing import Distribution
from tests.support import fresh
from tests.support.dealt_models import ids, llama, moe

WORLD = 2
BY_ACCELERATE = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}  # as `accelerate launch` does
SOME = bs.Recipe("nvfp4", "nvfp4", skip=["*.q_proj", "*.down_proj", "lm_head"])
FLOAT_EXPERTS = bs.Recipe("mxfp4", skip=["*experts*"])
# the model, its recipe or None for its quantized directory, and how it is dealt out
CASES: dict[str, tuple[str, bs.Recipe | None, dict[str, Any]]] = {
    "layers": ("llama", bs.Recipe("int8_channel", "int8_token"), {"tp_plan": "auto"}),
    "some layers": ("llama", SOME, {"tp_size": 2}),
    "layers and rows of experts": ("moe", None, {"tp_size": 2}),
    "float experts": ("moe", FLOAT_EXPERTS, {"tp_size": 2}),
    "layers and experts": ("moe", None, {"tp_size": 2, "ep_size": 2}),
    "experts, shards of the rest": ("moe", FLOAT_EXPERTS, {"fsdp_size": 2, "ep_size": 2}),
    "shards": ("tied", None, {"fsdp_size": 2}),
}
CUT = DistributedConfig(tp_size=2)
EXACT = ("shards",)  # each process computes all
FAST = ("layers", "shards")
MORE = tuple(case for case in CASES if case not in FAST)


def tied() -> Any:
    model = llama()
    model.config.tie_word_embeddings = True
    return type(model)(model.config)


def loaded(folder: Path, case: str, **options: Any) -> Any:
    kind, recipe, _ = CASES[case]
    where = "float" if recipe else "quantized"
    options |= {"quantization_config": BlockscaleConfig(recipe)} if recipe else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tp_plan's layers that the model lacks, input formats
        return hf.AutoModelForCausalLM.from_pretrained(folder / f"{kind}-{where}", **options)


def held_bytes(model: Any) -> int:
    tensors = (*model.parameters(), *model.buffers())
    return sum(getattr(each, "to_local", lambda e=each: e)().nbytes for each in tensors)


def words(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def dealt(folder: Path, case: str) -> dict[str, Any]:
    asked = DistributedConfig(**CASES[case][2])
    model = loaded(folder, case, distributed_config=asked)
    with torch.no_grad():
        found = {"logits": model(ids()).logits, "bytes": held_bytes(model)}
    return found | {"save": words(lambda: model.save_pretrained(folder / "again"))}


def accelerated(model: Any, rank: int) -> None:
    """What accelerate's `prepare` does on GPUs with FSDP2: it takes no CPUs."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no", torch_device_mesh=None,
        is_main_process=rank == 0, device=torch.device("cpu"), parallelism_config=None,
    )  # fmt: skip
    fsdp2_prepare_model(accelerator, model)


def trained(folder: Path, rank: int, mesh: Any | None) -> dict[str, Any]:
    """peft's LoRA after two steps, on shards or in one process; each rank has half of the rows."""
    from peft import LoraConfig, get_peft_model

    import blockscale.integrations.peft  # noqa: F401 - registers

    os.environ |= BY_ACCELERATE if mesh is not None else {}
    model = loaded(folder, "shards")
    for name in BY_ACCELERATE:
        os.environ.pop(name, None)
    torch.manual_seed(7)
    config = LoraConfig(target_modules=["q_proj", "down_proj"], r=2, init_lora_weights=False)
    tuned = get_peft_model(model, config)
    if mesh is not None:
        before = held_bytes(tuned)
        accelerated(tuned, rank)
        assert held_bytes(tuned) <= 0.6 * before
    own = [each for each in tuned.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(own, lr=10.0)
    rows = ids() if mesh is None else ids()[rank : rank + 1]
    for _ in range(2):
        optimizer.zero_grad()
        tuned(rows).logits.square().mean().backward()
        optimizer.step()
    values = [getattr(each, "full_tensor", lambda e=each: e)().detach() for each in own]
    late = words(lambda: get_peft_model(model, config)) if mesh is not None else ""
    return {"adapters": values, "late": late}


PARTS = ["q_proj", "k_proj", "o_proj", "down_proj", "embed_tokens"]  # float ones among them


def tuned_parts(folder: Path, rank: int, **asked: Any) -> dict[str, Any]:
    """peft's LoRA after two steps beside parts of layers; each process draws other adapters."""
    from peft import LoraConfig, PeftModel, get_peft_model

    import blockscale.integrations.peft  # noqa: F401 - registers

    model = loaded(folder, "some layers", **asked)
    torch.manual_seed(7 + rank)
    config = LoraConfig(target_modules=PARTS, r=2, init_lora_weights=False, lora_bias=False)
    tuned: Any = get_peft_model(model, config)
    tuned.add_adapter("dropped", LoraConfig(target_modules=PARTS[:4], r=2, lora_dropout=0.5))
    losses = [float(step(tuned)) for _ in range(2)]
    found = {"adapters": adapters(tuned), "losses": losses}
    with torch.no_grad():
        found["logits"] = tuned(ids()).logits
    if asked:
        found["merged"] = words(tuned.merge_and_unload)
        tuned.save_pretrained(str(folder / "adapter"), is_main_process=rank == 0)
        tuned.set_adapter("dropped")
        torch.manual_seed(rank)
        step(tuned.train())
        found["dropped"] = adapters(tuned)
        late = LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa")
        found["pissa"] = words(lambda: tuned.add_adapter("late", late))
        whole = LoraConfig(target_modules=["q_proj"], modules_to_save=["k_proj"])
        found["whole"] = words(lambda: get_peft_model(tuned.base_model.model, whole))
        dist.barrier()
        again = PeftModel.from_pretrained(
            loaded(folder, "some layers", **asked), folder / "adapter"
        )
        with torch.no_grad():
            found["again"] = again(ids()).logits
    return found


def step(tuned: Any) -> Tensor:
    """One of gradient descent, with norms of gradients that all processes must have alike."""
    own = [each for each in tuned.parameters() if each.requires_grad]
    loss: Tensor = tuned(ids()).logits.square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(own, 0.5)
    with torch.no_grad():
        for each in own:
            each -= each.grad
            each.grad = None
    return loss.detach()


def adapters(tuned: Any) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in tuned.named_parameters() if p.requires_grad}


def work(rank: int, folder: str, cases: Sequence[str] = FAST) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    hf.logging.set_verbosity_error()
    meet = f"file://{folder}/meet of {cases[0]}"  # a file that others met by keeps their places
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=WORLD)
    try:
        found: dict[str, Any] = {case: dealt(Path(folder), case) for case in cases}
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
        ours = loaded(Path(folder), cases[0])
        bs.parallel.shard_(ours, mesh)
        with torch.no_grad():
            found["shard_"] = ours(ids()).logits
        found["trained"] = trained(Path(folder), rank, mesh)
        found["parts"] = tuned_parts(Path(folder), rank, distributed_config=CUT)
        torch.save(found, f"{folder}/{cases[0]} {rank}.pt")
    finally:
        dist.destroy_process_group()


def work_on_more(rank: int, folder: str) -> None:
    work(rank, folder, MORE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Float models and their quantized directories."""
    folder = tmp_path_factory.mktemp("dealing")
    for make in (llama, moe, tied):
        torch.manual_seed(5)
        name = make.__name__
        make().eval().save_pretrained(folder / f"{name}-float")
        bs.quantize_directory(folder / f"{name}-float", folder / f"{name}-quantized", "mxfp4")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each process found, from one spawn."""
    fresh.ranks(work, folder, WORLD, fresh.WITH_TRANSFORMERS)
    return [torch.load(folder / f"{FAST[0]} {rank}.pt") for rank in range(WORLD)]


@pytest.fixture(scope="module")
def more(folder: Path) -> list[dict[str, Any]]:
    fresh.ranks(work_on_more, folder, WORLD, fresh.WITH_TRANSFORMERS)
    return [torch.load(folder / f"{MORE[0]} {rank}.pt") for rank in range(WORLD)]


def check(found: list[dict[str, Any]], folder: Path, case: str) -> None:
    """Each holds about half; sums of parts are added in another order."""
    model = loaded(folder, case)
    with torch.no_grad():
        whole: Tensor = model(ids()).logits
    for each in found:
        logits = each[case]["logits"]
        assert each[case]["bytes"] <= 0.6 * held_bytes(model)
        torch.testing.assert_close(logits, whole, rtol=1e-5, atol=1e-6)
        assert torch.equal(logits, whole) or case not in EXACT
        assert "save_pretrained: " in each[case]["save"]


@pytest.mark.slow
@pytest.mark.parametrize("case", FAST)
def test_logits_are_those_of_one_process(
    found: list[dict[str, Any]], folder: Path, case: str
) -> None:
    check(found, folder, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_logits_of_more_models(more: list[dict[str, Any]], folder: Path, case: str) -> None:
    check(more, folder, case)


@pytest.mark.slow
def test_it_is_what_shard_does(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert torch.equal(each[FAST[0]]["logits"], each["shard_"])


@pytest.mark.slow
def test_adapters_of_peft_train_on_shards(found: list[dict[str, Any]], folder: Path) -> None:
    """As in one process; after fully_shard, they are refused."""
    whole = trained(folder, 0, None)["adapters"]
    for each in found:
        for mine, theirs in zip(each["trained"]["adapters"], whole, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        assert "fully_shard has been called for it: put adapters in" in each["trained"]["late"]


@pytest.mark.slow
def test_adapters_of_peft_train_beside_parts(found: list[dict[str, Any]], folder: Path) -> None:
    """Whole adapters, the same on all processes to the bit, and those of one process."""
    whole = tuned_parts(folder, 0)
    first, other = (each["parts"] for each in found)
    for each in (first, other):
        torch.testing.assert_close(each["losses"], whole["losses"], rtol=1e-4, atol=0)
        torch.testing.assert_close(each["adapters"], whole["adapters"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(each["logits"], whole["logits"], rtol=1e-4, atol=1e-5)
        assert torch.equal(each["again"], each["logits"])
        assert "q_proj: init_lora_weights='pissa' looks at the whole weight" in each["pissa"]
        assert "modules_to_save names model.layers.0.self_attn.k_proj" in each["whole"]
        assert "to merge an adapter, save it (save_pretrained)" in each["merged"]
    for some in ("adapters", "dropped"):
        assert all(torch.equal(first[some][name], own) for name, own in other[some].items())
    assert len(first["dropped"]) == 16 and set(first["dropped"]).isdisjoint(first["adapters"])
    saved = load_file(folder / "adapter" / "adapter_model.safetensors")
    names = {name.replace(".weight", ".default.weight"): name for name in saved}
    assert all(
        torch.equal(saved[names.get(n, n)], p) for n, p in first["adapters"].items() if n in names
    )


@pytest.mark.parametrize(
    ("asked", "recipe", "told"),
    [
        ({"pp_size": 2}, "mxfp4", "asks for pp_size=2, and pipelines of quantized models"),
        ({"fsdp_size": 2, "fsdp_mixed_precision": True}, "mxfp4", "would round the scales"),
        ({"tp_size": 2}, "int8:flat64:fp32", r"o_proj.weight' cannot be 'rowwise': .*flattened"),
        ({"tp_size": 2, "tp_plan": {"lm_head": "sequence_parallel"}}, "mxfp4", "unknown style 's"),
        ({"tp_size": 2, "ep_size": 2, "ep_plan": {"lm_head": "colwise"}}, "mxfp4",
         "deals experts out by 'colwise'"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_is_refused_before_it_is_read(
    folder: Path, asked: Any, recipe: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.distributed.mixin import DistributedMixin

    class Manager:
        def get_mesh(self, dims: Any) -> Any:
            assert dims == ("pp", "fsdp", "tp"), "nothing may be cut"  # transformers itself asks

    config = DistributedConfig(**asked)
    monkeypatch.setattr(
        DistributedMixin,
        "prepare_distribute_model",
        lambda *_, device_map: (config, None, Manager()),
    )
    monkeypatch.setattr(hf.PreTrainedModel, "_load_pretrained_model", None)
    with pytest.raises(ValueError, match=told):
        hf.AutoModelForCausalLM.from_pretrained(
            folder / "llama-float",
            distributed_config=config,
            quantization_config=BlockscaleConfig(recipe),
        )


def test_accelerate_that_broadcasts_the_state_of_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (BY_ACCELERATE | {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="set fsdp_cpu_ram_efficient_loading to false"):
        loaded(folder, "shards")
    monkeypatch.setenv("FSDP_VERSION", "1")  # shards no codes, which stay buffers
    assert not any("codes" in name for name, _ in loaded(folder, "shards").named_parameters())


def test_one_process_needs_nothing() -> None:
    model = llama()
    Distribution(model).finish()
    model.config.distributed_config = DistributedConfig(tp_size=1)
    Distribution(model).finish()
    assert copy.deepcopy(model)._tp_size is None


def test_a_transformers_that_deals_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.integrations.transformers import dealing

    monkeypatch.setattr(dealing, "_mixin", lambda: None)
    dealing.deal_later()
    model = llama()
    model.config.distributed_config = DistributedConfig(tp_size=2)
    with pytest.raises(ValueError, match=r"asks for tp_size=2, which this version .*shard_"):
        Distribution(model)


def test_a_transformers_without_whole_plans(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """5.17: tensor parallel alone, and the mesh itself in the place of what manages several."""
    from transformers.distributed.mixin import DistributedMixin

    monkeypatch.delattr(DistributedMixin, "_resolve_parallel_plans")
    model: Any = llama()
    config = model.config
    for asked in ({"fsdp_size": 2}, {"tp_size": 2, "fsdp_size": 2}):
        config.distributed_config = DistributedConfig(**asked)
        with pytest.raises(ValueError, match=r"size=2, which this version .*transformers 5\.23"):
            Distribution(model)
    config.distributed_config = CUT
    vars(CUT)["enable_expert_parallel"] = True
    try:
        with pytest.raises(ValueError, match=r"tp_size=2 and experts, which this version"):
            Distribution(model)
    finally:
        del vars(CUT)["enable_expert_parallel"]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        dealing = Distribution(model)
        dealing.parameters = dict
        whole = {"lm_head": "colwise_gather_output", "model.layers.*.mlp.up_proj": "colwise"}
        asked = DistributedConfig(tp_size=2, tp_plan=whole)
        dealing.plan(asked, dist.device_mesh.init_device_mesh("cpu", (1,)))
        bs.quantize_(model, "mxfp4")
        before = model(ids()).logits
        dealing.finish()
        assert torch.equal(model(ids()).logits, before)
        parts = [n for n, each in model.named_modules() if getattr(each, "part", "")]
        assert len(parts) == 3 and model._device_mesh.size() == 1
    finally:
        dist.destroy_process_group()


def test_experts_that_do_not_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.integrations.transformers.dealing import _keep_experts
    from blockscale.parallel import parts

    monkeypatch.setattr(parts.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(parts.dist, "get_world_size", lambda group: 3)
    experts = moe().model.layers[0].mlp.experts
    _keep_experts(experts, "gate_up_proj_bias", None)  # it has none
    with pytest.raises(ValueError, match="ep_size=3: 4 experts cannot be dealt out evenly"):
        _keep_experts(experts, "gate_up_proj", None)
