# SPDX-License-Identifier: BSD-3-Clause
"""Input formats of experts: rows that meet a stack are quantized as those of a list."""

import copy
import pathlib
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.store import StackInput, all_held
from tests.layers.experts.families import build, logits
from tests.support.mixtures import OfLists, OfStacks, Turned, batches, model, stack_values

UP = "model.layers.0.mlp.experts.gate_up_proj"
DYNAMIC = ("mxfp4", "int8:token:fp32", "int8:tensor:fp32", "e2m1:group16:e4m3")
STATIC = (
    "int8:tensor:fp32",
    "int8:channel-1:fp32",
    "uint8:tensor:fp32:asym",
    "e2m1:group16:e4m3/given",
)


class ExpertStacks(OfStacks):
    """Known by its name for one that holds experts."""


class TurnedExperts(Turned):
    """The same."""


def both(kind: type, recipe: bs.Recipe, how: dict[str, Any] | None) -> tuple[Any, Any, bs.Ledger]:
    """A model of stacks and one of lists, quantized, or calibrated with `how`."""
    stack, listed = model(kind, 2), model(OfLists, 2)
    if how is None:
        ledger = bs.quantize_(stack, recipe)
        bs.quantize_(listed, recipe)
    else:
        ledger = bs.calibrate(stack, batches(), recipe, progress=False, **how)
        bs.calibrate(listed, batches(), recipe, progress=False, **how)
    return stack, listed, ledger


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", DYNAMIC)
@pytest.mark.parametrize("kind", [ExpertStacks, TurnedExperts])
def test_a_stack_gives_what_a_list_gives(kind: type, fmt: str) -> None:
    stack, listed, ledger = both(kind, bs.Recipe("mxfp4", input=fmt), None)
    with bs.use("reference"), torch.no_grad():
        for x in batches(1, 40):
            assert torch.equal(stack(x), listed(x))
    assert ledger["0.up"].input == bs.parse(fmt).spelling
    assert ledger["0.up"].details == ledger["0.up"].reason == ""


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", STATIC)
@pytest.mark.parametrize("weight", [None, "gptq"])
def test_static_scales_are_of_each_expert(fmt: str, weight: str | None) -> None:
    how = {"weight": weight, "observer": "min_max", "experts": 0}
    stack, listed, ledger = both(ExpertStacks, bs.Recipe("mxfp4", input=fmt), how)
    for name in ("up", "down"):
        held = dict(all_held(stack))[f"0.{name}"].input
        assert isinstance(held, StackInput)
        for e in range(4):
            alone = listed.get_submodule(f"0.experts.{e}.{name}").input
            one = held.of_matrix(e)
            assert one.static
            for part, tensor in alone.named_buffers():
                assert torch.equal(getattr(one, part).flatten(), tensor.flatten())
        assert torch.equal(stack_values(stack, f"0.{name}"), stack_values(listed, f"0.{name}"))
        told = "static outer scale of its input" if "given" in fmt else "static input by min_max"
        assert told in ledger[f"0.{name}"].details
    with bs.use("reference"), torch.no_grad():
        assert torch.equal(stack(batches(1)[0]), listed(batches(1)[0]))


@pytest.mark.some(4)
@pytest.mark.parametrize("given", [None, *STATIC[:2], STATIC[3]])
def test_every_way_through_the_experts(given: str | None) -> None:
    """All by the same scales; the product of every way is a row at a time of its own expert."""
    quantized = build("mixtral")
    recipe = bs.Recipe(rules={"*.experts": {"weight": "mxfp4", "input": given or "mxfp4"}})
    ids = [{"input_ids": torch.arange(96).reshape(2, 48)}]
    if given is None:
        bs.quantize_(quantized, recipe)
    else:
        bs.calibrate(quantized, ids, recipe, progress=False)
    found = []
    for way in ("eager", "grouped_mm", "batched_mm"):
        quantized.set_experts_implementation(way)
        with bs.use("reference"):
            found.append(logits(quantized))
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=2e-6)
    left = build("mixtral")
    bs.quantize_(left, bs.Recipe(rules={"*.experts": "mxfp4"}))
    assert not torch.allclose(found[0], logits(left), rtol=0, atol=1e-3)


@pytest.mark.slow
def test_states_and_files_keep_them(tmp_path: pathlib.Path) -> None:
    for given in (None, STATIC[2], STATIC[3]):
        quantized = build("gpt_oss")
        recipe = bs.Recipe(
            rules={"*.experts.*proj": {"weight": "mxfp4", "input": given or "mxfp4"}}
        )
        ids = [{"input_ids": torch.arange(96).reshape(2, 48)}]
        if given is None:
            bs.quantize_(quantized, recipe)
        else:
            bs.calibrate(quantized, ids, recipe, progress=False)
        expected, path = logits(quantized), tmp_path / "model.safetensors"
        bs.save(quantized, path)
        loaded = bs.load(build("gpt_oss"), path)
        assert torch.equal(logits(loaded), expected)
        other = copy.deepcopy(quantized)
        other.load_state_dict(quantized.state_dict())
        assert torch.equal(logits(other), expected)
        quantized.save_pretrained(tmp_path / f"{given}".replace("/", "-"))
        read = type(quantized).from_pretrained(tmp_path / f"{given}".replace("/", "-"))
        assert torch.equal(logits(read), expected)
        by = dict(all_held(read))["model.layers.0.mlp.experts.down_proj"].input
        assert (by.fmt, by.static) == (bs.parse(given or "mxfp4").spelling, given is not None)


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_the_directory_command_gives_the_same(kind: str, tmp_path: pathlib.Path) -> None:
    """Of files that have experts one by one, and of files that have stacks."""
    fmt = "nvfp4" if kind == "gpt_oss" else "mxfp4"
    recipe, floats = bs.Recipe(fmt, input=fmt), build(kind)
    floats.save_pretrained(tmp_path / "floats")
    ledger = bs.quantize_directory(tmp_path / "floats", tmp_path / "codes", recipe)
    told = [entry.input for entry in ledger.quantized if "experts" in entry.name]
    assert set(told) == {bs.parse(fmt).spelling}
    bs.quantize_(floats, recipe)
    expected = logits(floats)
    assert torch.equal(logits(bs.load(build(kind), tmp_path / "codes")), expected)
    assert torch.equal(logits(type(floats).from_pretrained(tmp_path / "codes")), expected)


def test_files_whose_experts_differ_say_so(tmp_path: pathlib.Path) -> None:
    recipe = bs.Recipe(rules={
        "*.experts.1.*": {"weight": "mxfp4", "input": "mxfp8"},
        "*.experts.*": {"weight": "mxfp4", "input": "mxfp4"},
    })  # fmt: skip
    floats = build("mixtral")
    floats.save_pretrained(tmp_path / "floats")
    bs.quantize_directory(tmp_path / "floats", tmp_path / "codes", recipe)
    with pytest.warns(UserWarning, match="formats of their input and output are not applied"):
        bs.load(build("mixtral"), tmp_path / "codes")
    with pytest.warns(UserWarning, match="formats of their input and output are not applied"):
        type(floats).from_pretrained(tmp_path / "codes")


def test_compressed_tensors_has_the_scale_of_each_expert(tmp_path: pathlib.Path) -> None:
    from safetensors.torch import load_file

    quantized = build("mixtral")
    recipe = bs.Recipe(rules={"*.experts": {"weight": "nvfp4", "input": "e2m1:group16:e4m3/given"}})
    ids = [{"input_ids": torch.arange(96).reshape(2, 48)}]
    bs.calibrate(quantized, ids, recipe, progress=False, experts=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.export.compressed_tensors(quantized, tmp_path / "ct")
    tensors = load_file(tmp_path / "ct" / "model.safetensors")
    by = dict(all_held(quantized))[UP].input
    assert by is not None
    for e in range(4):
        for w in ("w1", "w3"):
            name = f"model.layers.0.block_sparse_moe.experts.{e}.{w}.input_global_scale"
            assert torch.equal(tensors[name], 1 / by.outer[e].reshape(1))


def test_what_is_not_quantized_is_told_once() -> None:
    quantized = model(ExpertStacks)
    bs.quantize_(quantized, bs.Recipe("mxfp4", input="mxfp4"))
    stack: Any = quantized[0].up
    with pytest.warns(UserWarning, match=r"0\.up: its input, in .*, is left in float.*einsum|bmm"):
        torch.einsum("ebk,enk->ebn", torch.randn(4, 2, 32), stack * 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = stack * 1.0


def test_a_program_is_refused_by_name() -> None:
    quantized = build("mixtral")
    bs.quantize_(quantized, bs.Recipe(rules={"*.experts": {"weight": "mxfp4", "input": "mxfp4"}}))

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = quantized

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model(ids, use_cache=False).logits

    with pytest.raises(RuntimeError, match=rf"{UP}: torch.compile and torch.export read a stack"):
        torch.export.export(Logits(), (torch.arange(9).reshape(1, -1),), strict=False)


def test_scales_that_only_data_can_choose() -> None:
    recipe = bs.Recipe(rules={"*.up": {"weight": "nvfp4", "input": "e2m1:group16:e4m3/given"}})
    floats = model(ExpertStacks)
    before = {name: each.clone() for name, each in floats.state_dict().items()}
    with pytest.raises(ValueError, match=r"0\.up: its input cannot be quantized .* bs\.calibrate"):
        bs.quantize_(floats, recipe)
    assert all(torch.equal(each, before[name]) for name, each in floats.state_dict().items())


def test_an_expert_without_tokens_leaves_the_stack_dynamic() -> None:
    """With experts=0 nothing fills it up: no scale comes from nothing."""
    recipe = bs.Recipe("mxfp4", input="int8:tensor:fp32")
    floats = model(ExpertStacks, bias=-1e9)
    with pytest.warns(UserWarning, match="expert 3 of 4 saw no token"):
        ledger = bs.calibrate(floats, batches(), recipe, progress=False, experts=0)
    assert "dynamic input" in ledger["0.up"].details
    by = dict(all_held(floats))["0.up"].input
    assert by is not None
    assert not by.static
    filled = model(ExpertStacks, bias=-1e9)
    with pytest.warns(UserWarning, match="expert 3 of 4 saw no token"):
        bs.calibrate(filled, batches(), recipe, progress=False)
    by = dict(all_held(filled))["0.up"].input
    assert by is not None
    assert by.static
    assert float(by.scale[3]) >= 0.9 * float(by.scale[:3].max()) > 0


def test_batch_invariant_refuses_scales_of_several_rows() -> None:
    quantized = model(ExpertStacks)
    bs.quantize_(quantized, bs.Recipe("mxfp4", input="int8:tensor:fp32"))
    x = batches(1)[0]
    with bs.use(batch_invariant=True), pytest.raises(RuntimeError, match=r"router|0\.up"):
        quantized(x)


def test_outputs_and_other_parameters_stay_in_float_and_say_so() -> None:
    ledger = bs.quantize_(model(ExpertStacks), bs.Recipe("mxfp4", output="int8:tensor:fp32"))
    assert "output left in float" in ledger["0.up"].reason
    other = bs.quantize_(model(OfStacks), bs.Recipe("mxfp4", input="mxfp4"))
    assert "input left in float: OfStacks computes with it directly" in other["0.up"].reason
