# SPDX-License-Identifier: BSD-3-Clause
"""A directory and a model in memory: the same tensors are quantized, to the same bits."""

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.files.directory.plan import make_plan
from blockscale.layers.computed import folded
from blockscale.layers.parameters import ParameterPlan, plan_parameters
from blockscale.layers.plan import Plan, plan_layers
from tests.models.registry import models
from tests.support.file_models import write_model
from tests.support.renaming_cases import CASES
from tests.support.renaming_hub import build, save
from tests.support.renaming_oracle import differing
from tests.support.some import crossed
from tests.support.transformers_models import same_bits


@pytest.mark.some(6)
@pytest.mark.parametrize(("name", "fmt"), CASES)
def test_both_flows_give_one_model(name, fmt, tmp_path):
    model = build(name)
    names = list(model.state_dict())
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", fmt)
    found = bs.load(build(name, 1), tmp_path / "quantized")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.quantize_(model, fmt)
    assert differing(found, model, names) == []


def test_routers_stay_in_float_unless_a_rule_names_them(tmp_path):
    """A layer called `gate` that has as many rows as inputs, or `gate_proj`, is no router."""
    rows = {"mlp.gate": 4, "mlp.gate_proj": 8, "attn.gate": 32, "mlp.shared_expert_gate": 1}
    for recipe, kept in (
        (bs.Recipe("mxfp4"), {"mlp.gate", "mlp.shared_expert_gate"}),
        (bs.Recipe("mxfp4", rules={"mlp.gate": "int8"}), {"mlp.shared_expert_gate"}),
    ):
        model = nn.ModuleDict({n: nn.ModuleDict() for n in ("mlp", "attn")})
        for name, count in rows.items():
            owner, _, last = name.partition(".")
            model[owner][last] = nn.Linear(32, count, bias=False)
        folder = write_model(tmp_path / f"float{len(kept)}", model.state_dict())
        ledger = bs.quantize_directory(folder, tmp_path / f"out{len(kept)}", recipe)
        there = {e.name.removesuffix(".weight") for e in ledger if e.status == "kept"}
        here = {e.name for e in bs.quantize_(model, recipe) if e.status == "kept"}
        assert there == here == kept


RECIPES = {
    "int8": bs.Recipe("int8:tensor:fp32"),
    "nvfp4": bs.Recipe("nvfp4", "nvfp4"),
    "block": bs.Recipe("int8:group128:fp32", fused=False),
    "profile": bs.Recipe("profile:gguf.q4_k"),
    "input": bs.Recipe(None, "int8_token", rules={"*q*": "int8"}),
    "rules": bs.Recipe("mxfp4", "mxfp8", rules={"*pos*": "int8", "*gate": "int8"}, skip=["*0*"]),
}
ZOO = [name for name, each in models().items() if each.library == "transformers"]
FEW = ("deepseek_v3", "gpt2", "mamba", "wav2vec2")
Decided = tuple[str, str, tuple[str, ...]]  # status, format, who shares its outer scale


def in_memory(model: nn.Module, recipe: bs.Recipe) -> Iterator[tuple[str, Decided]]:
    with folded(model, recipe):
        layers = plan_layers(model, recipe)
        for each in layers:
            entry = each.entry
            fmt, joined = (
                (str(each.format), each.outer_group) if isinstance(each, Plan) else ("", ())
            )
            yield f"{each.name}.weight", (entry.status, fmt, tuple(sorted(joined)))
        for other in plan_parameters(model, layers, recipe):
            joined = other.outer_group if isinstance(other, ParameterPlan) else ()
            entry = other.entry if isinstance(other, ParameterPlan) else other
            yield other.name, (entry.status, entry.weight, tuple(sorted(joined)))


def in_directory(folder: Path, recipe: bs.Recipe) -> Iterator[tuple[str, Decided]]:
    plan = make_plan(folder, recipe, 0)
    joined = {tensor.name: tensor.outer_group for shard in plan.shards for tensor in shard.tensors}
    for entry in plan.ledger:
        layers = [name.removesuffix(".weight") for name in joined[entry.name]]
        yield entry.name, (entry.status, entry.weight, tuple(sorted(layers)))


@pytest.mark.parametrize("name", crossed(2, FEW))
def test_few_models_are_decided_alike(name: str, tmp_path: Path) -> None:
    check_decisions(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*ZOO} - {*FEW}))
def test_all_models_are_decided_alike(name: str, tmp_path: Path) -> None:
    check_decisions(name, tmp_path)


def names_in_model(model: nn.Module, folder: Path) -> dict[str, str]:
    """{name in the file: name in the model} of tensors that are stored under another name."""
    own: dict[bytes, list[str]] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        own.setdefault(values_of(tensor), []).append(name)
    stored = {n: t for path in folder.glob("*.safetensors") for n, t in load_file(path).items()}
    found = {name: own.get(values_of(tensor), []) for name, tensor in stored.items()}
    return {name: of[0] for name, of in found.items() if name not in state and len(of) == 1}


def treats_apart(recipe: bs.Recipe, *names: str) -> bool:
    """Whether patterns name a tensor by one of its names and not by another (segformer's `sr`)."""
    return len({recipe.decide(name) for name in names}) > 1


def values_of(tensor: torch.Tensor) -> bytes:
    return repr(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes()


def names_of(layers: Iterable[str], names: Mapping[str, str]) -> Iterator[str]:
    for layer in layers:
        weight = f"{layer}.weight"
        yield names.get(weight, weight).removesuffix(".weight")


def check_decisions(name: str, tmp_path: Path) -> None:
    """Status, format and company of every tensor that model and file have.

    Some are stored under another name (llava, paligemma): they are known by their values. Patterns
    name those by the file's name in a directory, and by the model's in a model.
    What is no layer in the model may look like one in the file: why it is kept may differ.
    """
    model: Any = models()[name].build()
    model.save_pretrained(tmp_path / "float")
    names = names_in_model(model, tmp_path / "float")
    for spelled, recipe in RECIPES.items():
        here = dict(in_memory(model, recipe))
        try:
            there = {
                names.get(each, each): (status, fmt, tuple(sorted(names_of(joined, names))))
                for each, (status, fmt, joined) in in_directory(tmp_path / "float", recipe)
            }
        except ValueError as error:
            assert "the recipe quantizes nothing" in str(error)
            assert not any(status == "quantized" for status, *_ in here.values())
            continue
        both = here.keys() & there.keys()
        assert both
        # of the parts of a computed weight, the file says what the model says of its layer
        parts = {each for each in both if ".parametrizations." in each}
        assert all(of[each][0] in ("kept", "skipped") for each in parts for of in (here, there))
        other = {names[each] for each in names if treats_apart(recipe, each, names[each])}
        found = {
            each: (here[each], there[each])
            for each in both - parts - other
            if here[each] != there[each]
        }
        assert not found, spelled


def test_a_profile_makes_the_codes_of_layers_only(tmp_path: Path) -> None:
    """A directory's matrix that is no layer's weight was quantized, where a model's was not."""
    model = nn.ModuleDict({"lstm": nn.LSTM(32, 32), "head": nn.Linear(32, 32)})
    recipe = bs.Recipe("profile:gguf.q8_0")
    folder = write_model(tmp_path / "float", model.state_dict())
    with pytest.warns(UserWarning, match="is only for the weights of layers"):
        ledger = bs.quantize_directory(folder, tmp_path / "out", recipe)
    with pytest.warns(UserWarning, match="is only for the weights of layers"):
        here = bs.quantize_(model, recipe)
    for name in ("lstm.weight_ih_l0", "lstm.weight_hh_l0"):
        assert (ledger[name].status, ledger[name].reason) == (here[name].status, here[name].reason)
    assert [entry.name for entry in ledger.quantized] == ["head.weight"]


def test_convolutions_that_servers_join_share_their_outer_scale(tmp_path: Path) -> None:
    """SqueezeBERT's query, key and value are convolutions: its directory had other bits."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "embedding_size": 32}
    config = hf.SqueezeBertConfig(**sizes, num_attention_heads=2, intermediate_size=32)
    torch.manual_seed(0)
    model = hf.SqueezeBertModel(config).eval()
    model.save_pretrained(tmp_path / "float")
    bs.quantize_directory(tmp_path / "float", tmp_path / "out", "nvfp4")
    found = bs.load(hf.SqueezeBertModel(config).eval(), tmp_path / "out")
    ledger = bs.quantize_(model, "nvfp4")
    assert any("outer scale shared with" in each.details for each in ledger)
    same_bits(found, model)


def test_matrices_of_several_sizes_share_their_outer_scale(tmp_path: Path) -> None:
    """Parameters of no layer, too: what is summed has to be the same, rows need not be."""

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, rows in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32)):
                self.register_parameter(name, nn.Parameter(torch.randn(rows, 32)))

    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": Holder()})
    folder = write_model(tmp_path / "float", model.state_dict())
    there = bs.quantize_directory(folder, tmp_path / "out", "nvfp4")
    here = bs.quantize_(model, "nvfp4")
    assert here["attn.q_proj"].details == there["attn.q_proj"].details
    assert "shared with k_proj, v_proj" in here["attn.q_proj"].details


def test_parameters_of_four_dimensions_that_a_rule_names(tmp_path: Path) -> None:
    """SAM's positions [1, 4, 4, 64], WavLM's constants [1, 4, 1, 1]: the directory kept them."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": nn.Module(), "head": nn.Linear(32, 32)})
    shapes = {
        "pos": (1, 4, 4, 64),
        "const": (1, 4, 1, 1),
        "wide": (3, 1, 1, 64),
        "line": (1, 1, 40),
    }
    for name, shape in shapes.items():
        model["attn"].register_parameter(name, nn.Parameter(torch.randn(shape)))
    for fmt in ("int8", "int4:group8:fp16", "mxfp4"):
        named = bs.Recipe(fmt, rules={"attn": fmt})
        folder = write_model(tmp_path / fmt.replace(":", "-") / "float", model.state_dict())
        there = bs.quantize_directory(folder, folder.parent / "out", named)
        twin = copy.deepcopy(model)
        here = bs.quantize_(twin, named)
        assert {e.name for e in there.quantized} == {
            f"{e.name}{'.weight' * (e.kind == 'Linear')}" for e in here.quantized
        }
        names = [f"attn.{each}" for each in shapes if here[f"attn.{each}"].status == "quantized"]
        assert len(names) >= 2
        same_bits(bs.load(copy.deepcopy(model), folder.parent / "out"), twin)
    ledger = bs.quantize_directory(folder, tmp_path / "default", "int8")
    assert [entry.name for entry in ledger.quantized] == ["head.weight"]
