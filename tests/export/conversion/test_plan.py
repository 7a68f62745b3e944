# SPDX-License-Identifier: BSD-3-Clause
"""Decisions before anything is written."""

from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.export.conversion.plan import (
    NotLosslessError,
    is_table,
    make_plan,
    no_layer,
    no_place,
)
from blockscale.export.conversion.source import source_of
from blockscale.export.writers import writer_of, writers
from tests.export.checkpoints.layouts.recorded import cases, directory
from tests.support.conversion_models import tensors, write


def test_the_smallest_type_that_is_exact(tmp_path: Path) -> None:
    """A tensor at a time: zero points of 8 are Q4_0, of 0 are Q4_1, others Q5_0."""
    held = tensors("uint4:group128:fp16:asym")
    names = [f"model.layers.0.mlp.{n}_proj.weight" for n in ("gate", "up", "down")]
    for name, zero in zip(names, (8, 0), strict=False):
        held[name].qparams.zero_point.fill_(zero)
    with bs.checkpoint(write(tmp_path / "m", held)) as opened:
        source = source_of(opened, True, "auto", None)
        steps = {step.source: step for step in make_plan(source, writer_of("gguf"), None, ())}
    assert [str(steps[name].target_format) for name in names] == [
        "int4:group32:fp16:full", "uint4:group32:fp16:offset", "int5:group32:fp16:full"
    ]  # fmt: skip


@pytest.mark.parametrize("producer", ["awq", "gptq"])
def test_a_type_is_chosen_without_reading_codes(
    producer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tensors("uint4:group128:fp16:asym")
    for q in held.values():
        if isinstance(q, bs.QTensor):
            q.qparams.zero_point.fill_(8)
    with bs.checkpoint(write(tmp_path / "m", held, producer)) as opened:
        source = source_of(opened, True, "auto", None)
        monkeypatch.setattr(type(opened), "__getitem__", None)
        steps = make_plan(source, writer_of("gguf"), None, ())
    wanted = {str(step.target_format) for step in steps if step.source.endswith("_proj.weight")}
    assert wanted == {"int4:group32:fp16:full"}


@pytest.mark.parametrize("late", [False, True])
def test_a_few_rows_may_decide(late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes less zero points that reach beyond int4, in the first rows or in the last one alone."""
    held, read = tensors("uint4:group128:fp16:asym"), []
    name = "model.layers.0.mlp.gate_proj.weight"
    q = held[name]
    q.qparams.zero_point.fill_(8)
    q.qparams.zero_point[-1 if late else 0] = 5
    q.packed[-1 if late else 0] = 255  # 15 - 5
    with bs.checkpoint(write(tmp_path / "m", held, "awq")) as opened:
        kind = type(opened)
        assert opened.first_rows(name).shape[0] < q.shape[0]
        whole = kind.__getitem__

        def counted(self: Any, name: str) -> bs.QTensor | torch.Tensor:
            read.append(name)
            return whole(self, name)

        monkeypatch.setattr(kind, "__getitem__", counted)
        source = source_of(opened, True, "auto", None)
        steps = {step.source: step for step in make_plan(source, writer_of("gguf"), None, ())}
    assert str(steps[name].target_format) == "int5:group32:fp16:full"
    assert (name in read) == late


@pytest.mark.parametrize(
    ("producer", "case", "why"),
    [("gptq", "4act", "act-order"), ("bitsandbytes", "int8 normal", "three factors")],
)
def test_what_no_format_says(producer: str, case: str, why: str, tmp_path: Path) -> None:
    stored, _, config = cases(producer)[case]
    with bs.checkpoint(directory(tmp_path / "d", stored, config)) as opened:
        source = source_of(opened, False, "auto", None)
        with pytest.raises(NotLosslessError, match=why):
            make_plan(source, writer_of("blockscale"), None, ())


def test_layouts_and_transforms_of_ours(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(32, 8, 3), torch.nn.Linear(64, 64))
    bs.quantize_(model, "int8:group32:fp16:full")
    bs.save(model, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path / "m.safetensors") as opened:
        source = source_of(opened, True, "keep", None)
        with pytest.raises(NotLosslessError, match=r"'0.weight': it is stored channels_last"):
            make_plan(source, writer_of("gguf"), None, ())


def test_tensors_that_gguf_has_not(tmp_path: Path) -> None:
    held = {"a.weight": bs.quantize(torch.randn(32, 32), "int8:group32:fp16:full"),
            "mask": torch.ones(3, dtype=torch.bool)}  # fmt: skip
    with bs.checkpoint(write(tmp_path / "m", held)) as opened:
        source = source_of(opened, True, "keep", None)
        with pytest.raises(NotLosslessError, match="GGUF cannot store tensors of bool"):
            make_plan(source, writer_of("gguf"), None, ())


@pytest.mark.parametrize("to", ["awq", "compressed-tensors", "gptq", "mlx"])
def test_parameters_that_no_layer_has_are_refused(to: str, tmp_path: Path) -> None:
    """Their readers would draw them at random: a file of ours holds them, and GGUF by its names."""
    held = tensors("uint4:group128:fp16:asym")
    held["model.layers.0.mlp.experts_down_proj"] = held["model.layers.0.mlp.down_proj.weight"]
    held["wte.weight"] = bs.quantize(torch.randn(32, 256), "uint4:group128:fp16:asym")
    with bs.checkpoint(write(tmp_path / "m", held)) as opened:
        source = source_of(opened, False, "auto", None)
        with pytest.raises(NotLosslessError) as error:
            make_plan(source, writer_of(to), None, ())
        reasons = error.value.reasons
        assert "only weights of layers" in reasons["model.layers.0.mlp.experts_down_proj"]
        table = reasons.get("wte.weight", "")
        assert ("of this layout do not support quantized" in table) == (
            not writer_of(to).embeddings
        )
        floats = ("model.layers.0.mlp.experts_down_proj", "wte")
        steps = make_plan(source, writer_of(to), None, floats) if to != "mlx" else []
    assert all(step.target_format is None for step in steps if step.name in (*floats, "wte.weight"))
    assert not (tmp_path / "out").exists()


TABLES = [
    "model.embed_tokens.weight", "token_embd.weight", "wte.weight", "transformer.wpe.weight",
    "embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight",
    "shared.weight", "gpt_neox.embed_in.weight", "emb.weight", "tok_embeddings.weight",
]  # fmt: skip
LAYERS = [
    "model.norm.weight", "gpt_neox.embed_out.weight", "lm_head.weight", "time_emb_proj.weight",
    "encoder.embedding_hidden_mapping_in.weight", "vision.patch_embedding.weight",
    "mlp.shared_expert.up_proj.weight", "time_embedding.linear_1.weight",
]  # fmt: skip
PARAMETERS = ["mlp.experts.down_proj", "self_attn.in_proj_weight", "rnn.weight_ih_l0", "w"]


def test_tables():
    assert [name for name in TABLES if not is_table(name)] == []
    assert [name for name in LAYERS if is_table(name)] == []


@pytest.mark.parametrize("name", list(writers()))
def test_every_writer(name):
    """Ours, GGUF (which has its own names) and gpt-oss (whose experts are parameters) take more."""
    writer = writer_of(name)
    anything = name in ("blockscale", "gguf", "gpt-oss")
    for each in PARAMETERS:
        assert (no_place(writer, each) is None) == anything
    assert not [each for each in LAYERS if no_place(writer, each)]
    tables = {no_place(writer, each) for each in TABLES}
    assert tables == (
        {None}
        if writer.embeddings
        else {"readers of this layout do not support quantized embeddings"}
    )


def test_reasons():
    assert "only weights of layers" in str(no_layer("mlp.experts.down_proj"))
    assert no_layer("mlp.experts.0.down_proj.weight") is None
