# SPDX-License-Identifier: BSD-3-Clause
"""Models with experts: quantized to the bits of their dequantized twins, saved and loaded."""

import copy
import pathlib
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.layers.store import all_held
from tests.layers.experts.families import FAMILIES, FORMATS, build, logits, twin

pytest.importorskip("transformers")
FEW = ("mixtral", "gpt_oss", "llama4_text", "dbrx")  # the others differ from these in names alone
EACH = [(kind, FORMATS[i % len(FORMATS)]) for i, kind in enumerate(FAMILIES) if kind in FEW]
EVERY = [(kind, fmt) for kind in FAMILIES for fmt in FORMATS if (kind, fmt) not in EACH]
IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")


def check(kind: str, spelling: str, path: pathlib.Path) -> None:
    model = build(kind)
    quantized = copy.deepcopy(model)
    ledger = bs.quantize_(quantized, spelling)
    total = sum(p.nbytes for p in model.parameters())
    done = sum(entry.bytes_before for entry in ledger.quantized)
    assert done >= 0.95 * total
    check_bits(model, quantized, spelling, *FAMILIES[kind][1:])
    other = twin(model, quantized)
    expected = logits(other)
    with bs.use("reference"):
        # the twin has torch's own products, whose order of sums depends on where buffers lie
        torch.testing.assert_close(logits(quantized), expected, rtol=0, atol=2e-6)
    got = logits(quantized)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
    check_implementations(quantized, expected)
    bs.save(quantized, path / "model.safetensors")
    loaded = bs.load(build(kind), path / "model.safetensors")
    assert torch.equal(logits(loaded), logits(quantized))


def check_bits(model: Any, quantized: Any, spelling: str, layout: str, parts: int) -> None:
    """Each expert, and each half of one whose file has two, is as if it were quantized alone; but
    halves share their outer scale, as the rows of one matrix do."""
    held = dict(all_held(quantized))
    assert held
    for name, weight in held.items():
        stored = model.get_parameter(name).detach()
        joined, turned = stored.ndim == 2, name.endswith("mlp.w2")  # of DBRX, its way back
        stored = stored.mT if layout == "transposed" else stored
        halves = parts if joined or "gate_up" in name else 1
        matrices = stored.chunk(parts) if joined else [h for e in stored for h in e.chunk(halves)]
        matrices = [each.mT for each in matrices] if turned else matrices
        alone = [bs.quantize(each.contiguous(), spelling) for each in matrices]
        if halves > 1 and not joined and "outer" in parse(spelling).parts:
            whole = [bs.quantize(each.contiguous(), spelling) for each in stored]
            outers = torch.stack([q.qparams.outer for q in whole for _ in range(halves)])
            assert torch.equal(weight.outer.reshape(-1), outers.reshape(-1))
            assert torch.equal(weight.codes, torch.stack([q.packed for q in whole]))
            assert torch.equal(weight.scale, torch.stack([q.qparams.scale for q in whole]))
            continue
        assert weight.layout == (f"transposed_stack:{parts}" if turned else layout)
        assert torch.equal(
            weight.codes.reshape(-1), torch.cat([each.packed.reshape(-1) for each in alone])
        )
        for part in parse(spelling).parts:
            together = torch.cat([getattr(each.qparams, part).reshape(-1) for each in alone])
            assert torch.equal(getattr(weight, part).reshape(-1), together)


def check_implementations(model: Any, expected: torch.Tensor) -> None:
    """Every way of transformers through the experts gives the same within rounding."""
    if model.config._experts_implementation != "grouped_mm":
        return  # it has one way of its own
    for way in IMPLEMENTATIONS:
        model.set_experts_implementation(way)
        torch.testing.assert_close(logits(model), expected, rtol=0, atol=2e-5)
    model.set_experts_implementation("grouped_mm")


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore:blockscale:UserWarning")  # of other parts, such as routers
@pytest.mark.parametrize(("kind", "spelling"), EACH)
def test_a_family(kind: str, spelling: str, tmp_path: pathlib.Path) -> None:
    check(kind, spelling, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:blockscale:UserWarning")
@pytest.mark.parametrize(("kind", "spelling"), EVERY)
def test_every_family_in_every_format(kind: str, spelling: str, tmp_path: pathlib.Path) -> None:
    check(kind, spelling, tmp_path)


@pytest.mark.parametrize("spelling", ["int4:group48:fp32", "nvfp4"])
def test_groups_that_do_not_divide_and_one_expert(spelling: str, tmp_path: pathlib.Path) -> None:
    """Last blocks of 16 of 64 columns and of 8 of 40 rows; and a stack of one matrix."""
    sizes = {"intermediate_size": 40, "num_local_experts": 1, "num_experts_per_tok": 1}
    model = build("mixtral", **sizes)
    quantized = copy.deepcopy(model)
    bs.quantize_(quantized, spelling)
    check_bits(model, quantized, spelling, "plain", 2)
    with bs.use("reference"):
        expected = logits(twin(model, quantized))
        torch.testing.assert_close(logits(quantized), expected, rtol=0, atol=2e-6)
    bs.save(quantized, tmp_path / "model.safetensors")
    loaded = bs.load(build("mixtral", **sizes), tmp_path / "model.safetensors")
    assert torch.equal(logits(loaded), logits(quantized))


def test_routers_stay_in_float_unless_named() -> None:
    """By default, with the reason; a rule asks for them."""
    name = "model.layers.0.mlp.gate.weight"
    kept = bs.quantize_(build("mixtral"), "mxfp4")[name]
    assert kept.status == "kept"
    assert "router" in kept.reason
    asked = bs.Recipe("mxfp4", rules={"*.mlp.gate": "int8_channel"})
    entry = bs.quantize_(build("mixtral"), asked)[name]
    assert (entry.status, entry.weight) == ("quantized", "int8:channel0:fp32")


def test_experts_can_have_a_format_of_their_own() -> None:
    recipe = bs.Recipe("int8_channel", rules={"*.experts.down_proj": None, "*.experts": "mxfp4"})
    ledger = bs.quantize_(build("mixtral"), recipe)
    prefix = "model.layers.0.mlp.experts"
    assert ledger[f"{prefix}.gate_up_proj"].weight == "e2m1:group32:e8m0/floor"
    assert ledger[f"{prefix}.down_proj"].status == "kept"


def test_what_a_stack_cannot_have_is_skipped_with_the_reason() -> None:
    model = build("mixtral")
    with pytest.warns(UserWarning, match="gate_up_proj"):
        ledger = bs.quantize_(model, bs.Recipe(rules={"*.experts": "book4:group32:fp32"}))
    entry = ledger["model.layers.0.mlp.experts.gate_up_proj"]
    assert entry.status == "skipped"
    assert "one table for a tensor" in entry.reason
    with pytest.raises(bs.SkippedError, match="one table"):
        bs.quantize_(model, bs.Recipe(rules={"*.experts": "book4:group32:fp32"}), strict=True)


def test_calibration_says_how_experts_were_rounded() -> None:
    """Without a weight algorithm their bits are those of quantize_, and the ledger says so."""
    batches = [{"input_ids": torch.arange(9).reshape(1, -1)}]
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32")
    model, plain = build("mixtral"), build("mixtral")
    ledger = bs.calibrate(model, batches, recipe, "min_max", progress=False)
    bs.quantize_(plain, recipe)
    entry = ledger["model.layers.0.mlp.experts.down_proj"]
    assert "plain rounding" in entry.details
    assert "static input by min_max" in entry.details
    assert "plain rounding" not in ledger["lm_head"].details
    expected = dict(all_held(plain))
    for name, weight in all_held(model):
        assert torch.equal(weight.codes, expected[name].codes)


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_export_as_the_float_model(kind: str) -> None:
    """`torch.export` of the default way through the experts, whose reads are dequantized there."""

    class Logits(torch.nn.Module):
        def __init__(self, model: Any):
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model(ids, use_cache=False).logits

    model = build(kind)
    bs.quantize_(model, "nvfp4")
    ids = torch.arange(9).reshape(1, -1)
    program = torch.export.export(Logits(model), (ids,), strict=False).module()
    torch.testing.assert_close(program(ids), logits(model), rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("way", ["grouped_mm", "batched_mm"])
def test_compile_in_one_graph_as_the_float_model(kind: str, way: str) -> None:
    model = build(kind)
    model.set_experts_implementation(way)
    bs.quantize_(model, "mxfp4")
    expected, ids = logits(model), torch.arange(9).reshape(1, -1)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        got = compiled(ids, use_cache=False).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
