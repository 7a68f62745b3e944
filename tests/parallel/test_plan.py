# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallel over two processes (gloo, one spawn) beside one process."""

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.parallel import parallelize_module

import blockscale as bs
from blockscale.parallel.plan import check_plan
from tests.support import fresh
from tests.support.dealt_models import ids, llama, moe

WORLD = 2
RECIPES: dict[str, bs.Recipe] = {
    "mxfp4": bs.Recipe("mxfp4"),
    "nvfp4": bs.Recipe("nvfp4", "nvfp4"),
    "int4": bs.Recipe("int4"),
    "int8 rows": bs.Recipe("int8_channel", "int8_token"),
    "int8 tensor": bs.Recipe("int8", "int8"),
    "mxfp8": bs.Recipe("mxfp8", "mxfp8"),
    "fp8": bs.Recipe("e4m3:channel0:fp32", "e4m3:token:fp32"),
}
PAIR = {"0": "colwise", "2": "rowwise"}


def pair(recipe: str, hidden: int = 384) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, hidden), nn.GELU(), nn.Linear(hidden, 128))
    bs.quantize_(net, RECIPES[recipe])
    return net


class LoRALinear(nn.Linear):
    """A layer that computes in a way of its own."""


def half(kept: str) -> nn.Sequential:
    """A pair of which one layer stays in float."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 384), nn.GELU(), nn.Linear(384, 128))
    bs.quantize_(net, bs.Recipe("mxfp4", skip=[kept]))
    return net


class Experts(nn.Module):
    """A mixture that reads its own float stacks, all of them for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 16, 32))
        self.down = nn.Parameter(torch.randn(3, 32, 8))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = torch.einsum("...k,ejk->e...j", x, self.up).chunk(2, -1)
        return torch.einsum("e...j,ekj->...k", gate * up, self.down)


MIXTURE = {
    "0": "colwise_gather_output", "1": "moe_tp_experts", "1.up": "packed_colwise",
    "1.down": "rowwise",
}  # fmt: skip


def mixture() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 32), Experts())
    bs.quantize_(net, bs.Recipe("mxfp4", skip=["1"]))
    return net


def rows() -> Tensor:
    x = torch.randn(2, 8, 128, generator=torch.Generator().manual_seed(1))
    return x * torch.linspace(0.1, 4, 128)


def gpt2() -> Any:
    import transformers

    config = transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=32)
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    import transformers

    config = transformers.BertConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertModel(config)


def deepseek() -> Any:
    """With latent attention: keys of all heads come from one layer, which is whole."""
    import transformers

    config = transformers.DeepseekV2Config(
        vocab_size=96, hidden_size=64, intermediate_size=128, moe_intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4,
        n_shared_experts=1, num_experts_per_tok=2, kv_lora_rank=32, q_lora_rank=None,
        qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, first_k_dense_replace=1,
        max_position_embeddings=32, n_group=1, topk_group=1,
    )  # fmt: skip
    return transformers.DeepseekV2ForCausalLM(config)


GPT2 = {"*.c_fc": "colwise", "*.mlp.c_proj": "rowwise", "*.wte": "embedding_rowwise"}
BERT = {
    "*.self.query": "colwise", "*.self.key": "colwise", "*.self.value": "colwise",
    "*.attention.output.dense": "rowwise", "*.intermediate.dense": "colwise",
    "*.output.dense": "rowwise", "*.word_embeddings": "embedding_colwise",
}  # fmt: skip
MODELS: dict[str, tuple[Any, Any]] = {
    "llama": (llama, "auto"),
    "qwen3_moe": (moe, "auto"),
    "gpt2": (gpt2, GPT2),
    "bert": (bert, BERT),
    "deepseek_v2": (deepseek, "auto"),
}


def of(kind: str, recipe: str) -> Any:
    torch.manual_seed(5)
    model = MODELS[kind][0]().eval()
    # stacks of experts whose rows of codes several processes have are refused: weights alone
    formats, weights = RECIPES[recipe].default, {"*.experts.*": {"input": None}}
    own = bs.Recipe(formats.weight, input=formats.input, rules=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.quantize_(model, own)
    return model


CASES = [(kind, recipe) for kind in MODELS for recipe in ("mxfp4", "int8 rows")]


def words(call: Any) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def tied() -> nn.ModuleDict:
    """A table and a layer that have one weight."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"a": nn.Embedding(64, 32), "b": nn.Linear(32, 64, bias=False)})
    net["b"].weight = net["a"].weight
    bs.quantize_(net, "mxfp4")
    return net


def tables(mesh: Any) -> dict[str, Any]:
    """What both give, whichever of them the plan names."""
    found, indices = {}, torch.tensor([[0, 63, 31, 32]])
    plans = {"a": "embedding_rowwise", "b": "colwise_gather_output"}, {"a": "embedding_colwise"}
    for plan in (*plans, {"b": "colwise_gather_output"}):
        net = tied()
        told = bs.parallel.shard_(net, mesh, plan)
        found[str(plan)] = told, net["a"](indices), net["b"](rows()[..., :32])
    return found


def pairs(mesh: Any) -> dict[str, Any]:
    """Outputs of the first layer, of both, the gradient of the input, and bytes."""
    found = {}
    for recipe in RECIPES:
        net = pair(recipe)
        whole = sum(net[i].qweight.nbytes for i in (0, 2))
        bs.parallel.shard_(net, mesh, PAIR)
        x = rows().requires_grad_()
        y = net(x)
        y.sum().backward()
        share = sum(net[i].qweight.nbytes for i in (0, 2)) / whole
        found[recipe] = net[0](rows()), y.detach(), x.grad, share
    gather = bs.parallel.shard_(
        net := pair("int4"), mesh, {"0": "colwise_gather_output", "2": "rowwise_split_input"}
    )
    x = rows().requires_grad_()
    (y := net(x)).sum().backward()
    found["whole between"] = gather, y.detach(), x.grad, 0
    styles = {name: bs.parallel.style(each) for name, each in PAIR.items()}
    net = parallelize_module(pair("nvfp4"), mesh, styles)
    found["styles"] = net(rows())
    for kept in ("0", "2"):
        told = bs.parallel.shard_(net := half(kept), mesh, PAIR)
        x = rows().requires_grad_()
        (y := net(x)).sum().backward()
        found[f"float {kept}"] = told, y.detach(), x.grad, net[int(kept)].weight.numel()
    told = bs.parallel.shard_(net := mixture(), mesh, MIXTURE)
    x = rows().requires_grad_()
    (y := net(x)).sum().backward()
    found["float stacks"] = told, y.detach(), x.grad, net[1].up.numel() + net[1].down.numel()
    return found


def models(mesh: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    bs.quantize_(rows_of_stacks := moe().eval(), RECIPES["int8 rows"])
    found["stacks"] = words(lambda: bs.parallel.shard_(rows_of_stacks, mesh, "auto"))
    for kind, recipe in CASES:
        model = of(kind, recipe)
        bs.parallel.shard_(model, mesh, MODELS[kind][1])
        with torch.no_grad():
            found[kind, recipe] = model(ids())[0]
        if kind == "deepseek_v2":
            found[kind, recipe, "gradient"] = of_norm(model)
    return found


def of_norm(model: Any) -> Tensor:
    """The gradient to what stands before latent attention."""
    norm = model.model.layers[0].input_layernorm.weight.requires_grad_(True)
    model(ids())[0].square().mean().backward()
    return norm.grad


def refused(rank: int, mesh: Any) -> dict[str, str]:
    other = pair("mxfp4" if rank else "nvfp4")
    before = other(rows())
    cut = pair("mxfp4")
    bs.parallel.shard_(cut, mesh, PAIR)
    bs.parallel.shard_(float_pair := half("0"), mesh, PAIR)
    odd = nn.Sequential(*pair("mxfp4")[:1], LoRALinear(4, 4))
    calls = {
        "others": lambda: bs.parallel.shard_(other, mesh, PAIR),
        "style": lambda: bs.parallel.shard_(pair("mxfp4"), mesh, {"0": "columns"}),
        "latent": lambda: bs.parallel.shard_(pair("mxfp4"), mesh, {"0": "mla_kv_a_proj"}),
        "nothing": lambda: bs.parallel.shard_(pair("mxfp4"), mesh, PAIR | {"7": "rowwise"}),
        "no plan": lambda: bs.parallel.shard_(pair("mxfp4"), mesh),
        "twice": lambda: bs.parallel.shard_(cut, mesh, PAIR),
        "save": lambda: bs.save(cut, "nowhere.safetensors"),
        "bytes": lambda: bs.parallel.shard_(pair("mxfp4", 330), mesh, {"2": "rowwise"}),
        "float": lambda: bs.parallel.shard_(nn.Sequential(nn.Linear(4, 4)), mesh, {"0": "colwise"}),
        "no linear": lambda: bs.parallel.shard_(odd, mesh, {"0": "colwise", "1": "colwise"}),
        "float save": lambda: bs.save(float_pair, "nowhere.safetensors"),
        "tied": lambda: bs.parallel.shard_(
            tied(), mesh, {"a": "embedding_colwise", "b": "colwise"}
        ),
        "features": lambda: cut[2](torch.zeros(1, 384)),
        "frozen": lambda: bs.parallel.shard_(bs.parallel.as_parameters_(pair("mxfp4")), mesh, PAIR),
    }
    found = {name: words(call) for name, call in calls.items()}
    return found | {"kept": str(torch.equal(other(rows()), before))}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=WORLD)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
        found = {"pairs": pairs(mesh), "tables": tables(mesh), "refused": refused(rank, mesh)}
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process found, from one spawn."""
    folder = tmp_path_factory.mktemp("plan")
    fresh.ranks(work, folder, WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def work_on_models(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=WORLD)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
        torch.save(models(mesh), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_models(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("models")
    fresh.ranks(work_on_models, folder, WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.some(2)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_pair_of_layers(found: list[dict[str, Any]], recipe: str) -> None:
    """Column-wise the bits of one process; sums in another order, and gradients likewise."""
    one, x = pair(recipe), rows().requires_grad_()
    y = one(x)
    y.sum().backward()
    first = torch.cat([each["pairs"][recipe][0] for each in found], -1)
    assert torch.equal(first, one[0](rows()))
    for each in found:
        _, both, gradient, share = each["pairs"][recipe]
        assert share <= 0.52
        torch.testing.assert_close(both, y.detach(), rtol=64 * 2**-23, atol=2e-5)
        torch.testing.assert_close(gradient, x.grad, rtol=1e-4, atol=1e-4)
    assert torch.equal(found[0]["pairs"][recipe][1], found[1]["pairs"][recipe][1])


def test_outputs_that_are_gathered_and_inputs_that_are_split(found: list[dict[str, Any]]) -> None:
    one, x = pair("int4"), rows().requires_grad_()
    y = one(x)
    y.sum().backward()
    for each in found:
        told, both, gradient, _ = each["pairs"]["whole between"]
        assert told == {"0": "colwise_gather_output", "2": "rowwise_split_input"}
        torch.testing.assert_close(both, y.detach(), rtol=64 * 2**-23, atol=2e-5)
        torch.testing.assert_close(gradient, x.grad, rtol=1e-4, atol=1e-4)


def test_styles_for_parallelize_module_are_the_same(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert torch.equal(each["pairs"]["styles"], each["pairs"]["nvfp4"][1])


@pytest.mark.parametrize("kept", ["0", "2"])
def test_a_pair_of_which_one_layer_is_in_float(found: list[dict[str, Any]], kept: str) -> None:
    one, x = half(kept), rows().requires_grad_()
    y = one(x)
    y.sum().backward()
    for each in found:
        told, both, gradient, size = each["pairs"][f"float {kept}"]
        assert told == PAIR and size == 128 * 384 / 2
        torch.testing.assert_close(both, y.detach(), rtol=64 * 2**-23, atol=2e-5)
        torch.testing.assert_close(gradient, x.grad, rtol=1e-4, atol=1e-4)


def test_float_stacks_of_experts_are_cut(found: list[dict[str, Any]]) -> None:
    """Their module's result is a sum of parts, so they may not stay whole."""
    one, x = mixture(), rows().requires_grad_()
    y = one(x)
    y.sum().backward()
    for each in found:
        told, both, gradient, size = each["pairs"]["float stacks"]
        assert told == MIXTURE and size == 3 * (16 * 32 + 32 * 8) / 2
        torch.testing.assert_close(both, y.detach(), rtol=1e-5, atol=2e-3)
        torch.testing.assert_close(gradient, x.grad, rtol=1e-4, atol=1e-2)


def test_tables_and_the_layers_that_share_them(found: list[dict[str, Any]]) -> None:
    whole = tied()
    table, y = whole["a"](torch.tensor([[0, 63, 31, 32]])), whole["b"](rows()[..., :32])
    for each in found:
        assert len(each["tables"]) == 3
        for told, ours, logits in each["tables"].values():
            assert told.keys() == {"a", "b"} and torch.equal(ours, table)
            torch.testing.assert_close(logits, y, rtol=64 * 2**-23, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "recipe"), CASES)
def test_models(of_models: list[dict[Any, Any]], kind: str, recipe: str) -> None:
    """Whole models that nobody here wrote, by their own plan or one of patterns."""
    with torch.no_grad():
        y = of(kind, recipe)(ids())[0]
    for each in of_models:
        assert "experts.down_proj' cannot be 'rowwise': its input is quantized" in each["stacks"]
        torch.testing.assert_close(each[kind, recipe], y, rtol=1e-4, atol=2e-5)
    if kind == "deepseek_v2":
        gradient = of_norm(of(kind, recipe))
        for each in of_models:
            torch.testing.assert_close(
                each[kind, recipe, "gradient"], gradient, rtol=1e-3, atol=1e-6
            )


@pytest.mark.parametrize(
    ("plan", "name", "shape", "told"),
    [
        ({"a": "rowwise"}, "a.weight", (64, 96), ""),
        ({"a": "colwise"}, "a.weight", (63, 96), ""),
        ({"a": "rowwise"}, "a.weight", (64, 66), "cannot be 'rowwise': .* a cut at 33 of"),
        ({"a": "rowwise_rep"}, "a.weight", (64, 66), "'a.weight' cannot be 'rowwise_split_input'"),
        ({"a": "replicate"}, "a.weight", (64, 66), ""),
        ({"a": "mla_kv_a_proj"}, "a.weight", (64, 66), ""),
        ({"b": "rowwise"}, "a.weight", (64, 66), ""),
        ({"a": "packed_colwise"}, "a.weight", (64, 66), "it is no stack of experts"),
        ({"a": "moe_tp_experts", "a.up": "packed_colwise"}, "a.up", (2, 64, 64), ""),
        ({"a.up": "packed_colwise"}, "a.up", (2, 63, 64), "63 rows cannot be divided into 2"),
        ({"a.up": "embedding_rowwise"}, "a.up", (2, 64, 64), "a quantized parameter, no layer"),
        ({"a": "packed_rowwise"}, "a.weight", (64, 64), "unknown style 'packed_rowwise'; choose"),
    ],
)  # fmt: skip
def test_plans_are_refused_before_there_are_weights(
    plan: dict[str, str], name: str, shape: tuple[int, ...], told: str
) -> None:
    parameters = {name: (bs.parse("mxfp4"), shape)}
    with pytest.raises(ValueError, match=told) if told else nullcontext():
        check_plan(plan, parameters, 2)


WORDS = {
    "others": "processes 0 and 1 of the mesh have other models, formats or plans",
    "style": "unknown style 'columns'; choose from colwise",
    "latent": "'0' cannot be 'mla_kv_a_proj': the model's config has no qk_rope_head_dim",
    "nothing": "the plan's '7' matches no layer of the model",
    "no plan": "Sequential has no plan of its own (tp_plan): pass one",
    "twice": "each process has a part of 2 of the model's weights, such as '0.weight'",
    "save": "bs.save: each process has a part of 2 of the model's weights",
    "bytes": "'2' cannot be 'rowwise': e2m1:group32:e8m0/floor: a cut at 165 of 330 parts 2 codes",
    "float": "the plan cuts no quantized layer of the model: quantize it before, or use",
    "no linear": "'1' cannot be 'colwise': it is in float and no nn.Linear (LoRALinear)",
    "float save": "each process has a part of 2 of the model's weights, such as '0'",
    "tied": "'b' shares its weight with another layer, which the plan cuts along the other",
    "features": "2.weight: expected an input [..., 192] on process",
    "frozen": "call it before bs.parallel.as_parameters_",
}


@pytest.mark.parametrize("case", WORDS)
def test_what_is_refused(found: list[dict[str, Any]], case: str) -> None:
    for each in found:
        assert WORDS[case] in each["refused"][case], each["refused"][case]
        assert each["refused"]["kept"] == "True"
