# SPDX-License-Identifier: BSD-3-Clause
"""Padding is not learned from: a padded batch with its mask says what its sentences say."""

import warnings
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms.learned.loop import divergence, squared_error
from blockscale.calibration.algorithms.learned.samples import Sample
from blockscale.calibration.algorithms.signround import SignRound
from blockscale.calibration.algorithms.spinquant import divergence as mean_divergence
from blockscale.calibration.block_calls import BlockCall
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.observers import make
from blockscale.calibration.padding import Padding
from blockscale.calibration.walk.resume import ResumeError
from blockscale.graph.edges import Edge

STATIC = bs.Recipe("int8_channel", "int8", "int8:channel-1:fp32")
INT4 = bs.Recipe("int4:group16:fp32")
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 32, "attn_implementation": "eager"}  # fmt: skip


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(intermediate_size=48, num_key_value_heads=2, **SMALL)
    return LlamaForCausalLM(config).eval()


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(BertConfig(intermediate_size=48, **SMALL)).eval()


def sentences() -> list[dict[str, Tensor]]:
    """Four of them, one by one, without padding."""
    seeded = torch.Generator().manual_seed(1)
    ids = [torch.randint(2, 64, (1, n), generator=seeded) for n in (5, 9, 3, 7)]
    return [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in ids]


def padded() -> list[dict[str, Tensor]]:
    """The same in two batches, padded to 16 on the right."""
    ids, mask = torch.ones(4, 16, dtype=torch.long), torch.zeros(4, 16, dtype=torch.long)
    for i, each in enumerate(sentences()):
        count = each["input_ids"].shape[1]
        ids[i, :count], mask[i, :count] = each["input_ids"][0], 1
    return [{"input_ids": ids[:2], "attention_mask": mask[:2]},
            {"input_ids": ids[2:], "attention_mask": mask[2:]}]  # fmt: skip


def quietly(model: nn.Module, batches: Any, recipe: Any = STATIC, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return calibrate(model, batches, recipe, **{"progress": False} | more)


def assert_near(a: nn.Module, b: nn.Module) -> None:
    """Equal codes, and floats but for the order of sums."""
    ours, theirs = a.state_dict(), b.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, theirs[name], rtol=3e-6, atol=1e-9, msg=name)


def differ(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() != theirs.keys() or any(
        isinstance(value, Tensor) and not torch.equal(value, theirs[name])
        for name, value in ours.items()
    )


@pytest.mark.parametrize("build", [llama, bert])
def test_the_scales_are_those_of_the_rows_that_count(build: Any) -> None:
    """To the bit: ranges over what forward hooks of ours see of the tokens under the mask."""
    model, largest = build(), {}

    def look(name: str) -> Any:
        def hook(_: nn.Module, args: Any, y: Tensor) -> None:
            for part, x in (("input", args[0]), ("output", y)):
                own = x[mask] if x.ndim == 3 and x.shape[:2] == mask.shape else x
                size = own.abs().amax(0).reshape(-1) if part == "output" else own.abs().amax()
                last = largest.get((name, part), torch.zeros(()))
                largest[name, part] = torch.maximum(last, size)

        return hook

    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    handles = [m.register_forward_hook(look(n)) for n, m in linears]
    for batch in padded():
        mask = batch["attention_mask"].bool()
        with torch.no_grad():
            model(**batch)
    for handle in handles:
        handle.remove()
    ledger = quietly(model, padded(), observer="min_max")
    for name, _ in linears:
        layer = model.get_submodule(name)
        for part in ("input", "output"):
            found = getattr(layer, part).parts[0].flatten()
            assert torch.equal(found, (largest[name, part] / 127).flatten()), (name, part)
    first = next(entry for entry in ledger if entry.status == "quantized")
    assert "padding left out: 40 of 64 tokens by attention_mask" in first.details
    if build is bert:
        details = ledger["pooler.dense"].details
        assert "padding was not left out: its input [2, 32] may not be" in details
        assert details.count("padding was not left out") == 1  # and not once a batch


FLOWS = [
    (STATIC, {"observer": "min_max"}),
    (bs.Recipe("int8_channel", "int8"), {"observer": "mse"}),
    (INT4, {"weight": "gptq"}),
    (INT4, {"weight": "search", "blocks": False}),
    (bs.Recipe("int4:group16:fp32", "int8"), {"transform": "awq"}),
]
MORE = [
    (bs.Recipe("int4:group16:fp32", "int8"), {"transform": "smoothquant"}),
]


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize(
    ("recipe", "options"),
    [*FLOWS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)],
    ids=[", ".join(map(str, each[1].values())) for each in (*FLOWS, *MORE)],
)
def test_padded_batches_are_their_sentences(recipe: bs.Recipe, options: dict[str, Any]) -> None:
    with_mask, one_by_one, without = llama(), llama(), llama()
    quietly(with_mask, padded(), recipe, **options)
    quietly(one_by_one, sentences(), recipe, **options)
    quietly(without, padded(), recipe, padding=None, **options)
    assert_near(with_mask, one_by_one)
    assert differ(without, with_mask)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
def test_masks_of_tokenizers_and_of_other_names(side: str) -> None:
    ours, other, named = bert(), bert(), bert()
    batches = padded()
    if side == "left":
        batches = [{k: v.flip(1) for k, v in each.items()} for each in batches]
    quietly(ours, batches, observer="min_max")
    quietly(other, [UserDict(each) for each in batches], observer="min_max")
    assert not differ(ours, other)

    class Renamed(nn.Module):
        def __init__(self, model: nn.Module):
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, real: Tensor) -> Any:
            return self.model(input_ids, real.long())

    renamed = [{"input_ids": e["input_ids"], "real": e["attention_mask"].bool()} for e in batches]
    quietly(Renamed(named), renamed, observer="min_max", padding="real")
    assert not differ(ours, named)


def test_what_no_mask_says_is_not_guessed() -> None:
    quiet = Padding("attention_mask")
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert torch.equal(quiet.mask_of({"attention_mask": mask}), mask.bool())
    assert torch.equal(quiet.mask_of({"attention_mask": mask.double()}), mask.bool())
    assert quiet.mask_of({"attention_mask": torch.ones(2, 3)}) is None
    assert quiet.mask_of((mask, mask)) is None and quiet.mask_of({"attention_mask": None}) is None
    assert Padding(None).mask_of({"attention_mask": mask}) is None
    assert quiet.notes() == []
    odd = Padding("attention_mask")
    assert odd.mask_of({"attention_mask": -1e9 * (1.0 - mask)}) is None
    assert odd.notes() == [
        "padding, if any, was not left out: attention_mask [2, 3] is not [batch, tokens] of 0 and 1"
    ]
    assert odd.mask_of({"attention_mask": mask[:, None, None]}) is None
    assert "[2, 1, 1, 3]" in odd.odd
    assert odd.mask_of({"attention_mask": mask, "decoder_input_ids": mask}) is None
    assert "the encoder or to the decoder" in odd.odd
    ledger = quietly(bert(), padded(), padding="real", observer="min_max")
    assert "no batch has a mask 'real'" in next(iter(ledger)).details
    with pytest.raises(ValueError, match="padding: expected the name of the mask in the batches"):
        calibrate(bert(), padded(), STATIC, padding=3)  # type: ignore[arg-type]


def test_the_mask_of_an_encoder_is_not_the_decoders() -> None:
    """Though both have 16 tokens here."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    model = T5ForConditionalGeneration(config).eval()
    batch = padded()[0]
    batch["decoder_input_ids"] = batch["input_ids"].flip(1)
    ledger = quietly(model, [batch], bs.Recipe("int8_channel", "int8"), observer="min_max")
    told = {e.name: "padding was not left out" in e.details for e in ledger if e.input}
    assert {name: each for name, each in told.items() if name.startswith("encoder.")}
    for name, each in told.items():
        assert each == (not name.startswith("encoder.")), name


@pytest.mark.slow
def test_a_run_that_goes_on_is_of_the_same_tokens(tmp_path: Path) -> None:
    first, again, whole = llama(), llama(), llama()
    options = {"weight": "gptq", "resume": tmp_path}
    quietly(first, padded(), INT4, **options)
    (tmp_path / "block-00001.safetensors").unlink()
    quietly(again, padded(), INT4, **options)
    quietly(whole, padded(), INT4, weight="gptq")
    assert not differ(again, whole) and not differ(first, whole)
    with pytest.raises(ResumeError):
        quietly(llama(), padded(), INT4, padding=False, **options)


class _Given:
    """A stage that gives what it is called with."""

    def run(self, _: Any, call: BlockCall) -> Tensor:
        return call.args[0]


@pytest.mark.parametrize("error", [squared_error, divergence])
def test_errors_of_blocks_leave_padding_out(error: Any) -> None:
    given, wanted = torch.randn(2, 2, 16, 8).unbind()
    batch = padded()[0]
    target = Padding("attention_mask").blank(wanted, batch)
    mask = batch["attention_mask"].bool()
    found = error(_Given(), {}, Sample(BlockCall((given,), {}), target))
    expected = error(_Given(), {}, Sample(BlockCall((given[mask],), {}), wanted[mask]))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        mean_divergence(given, target), mean_divergence(given[mask], wanted[mask])
    )


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("weight", ["signround:3", SignRound(3, whole=2)], ids=["", "whole"])
def test_signround_does_not_look_at_padding(weight: Any) -> None:
    """What is in the padding's place changes nothing but the scales of nobody's tokens."""
    ours, theirs, batches = llama(), llama(), padded()
    others = [{**each} for each in batches]
    for each in others:
        filled = torch.full_like(each["input_ids"], 9)
        each["input_ids"] = torch.where(each["attention_mask"].bool(), each["input_ids"], filled)
    quietly(ours, batches, INT4, weight=weight)
    quietly(theirs, others, INT4, weight=weight)
    assert not differ(ours, theirs)


def test_layers_side_by_side_get_the_same_rows() -> None:
    padding, x = Padding("attention_mask"), torch.randn(2, 16, 4)
    mask = padding.mask_of(padded()[0])
    assert mask is not None
    rows = padding._without(x, mask)
    assert torch.equal(rows, x[mask])
    assert padding._without(x, mask) is rows
    x.mul_(2)
    assert torch.equal(padding._without(x, mask), x[mask])


def test_edges_of_graphs_see_no_padding() -> None:
    fmt = bs.parse("int8:tensor:fp32")
    edge = Edge(fmt, make("min_max", fmt), "the input of add")
    batch, x = padded()[0], torch.randn(2, 16, 4)
    with Padding("attention_mask").during(batch):
        edge(x)
    assert int(edge.observer.samples) == int(batch["attention_mask"].sum()) * 4
    edge(x)
    assert int(edge.observer.samples) == int(batch["attention_mask"].sum()) * 4 + x.numel()
