# SPDX-License-Identifier: BSD-3-Clause
"""Which way stacks lie, as transformers says, and what it cuts."""

import pytest
import torch
from transformers.conversion_mapping import _build_checkpoint_conversion_mapping
from transformers.models.aria.modeling_aria import AriaExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.openai_privacy_filter import modeling_openai_privacy_filter

import blockscale as bs
from blockscale.core.pack import to_stored
from blockscale.files.directory.stacks import CUT, Types, stacked, types_of
from blockscale.files.load import _read_qtensor
from blockscale.files.stored_model import open_stored_model
from blockscale.layers.parameters import Stack
from tests.support.file_models import write_model


@pytest.mark.parametrize("kind", ["gpt_oss", "llama4_text", "aria_text", "openai_privacy_filter"])
def test_stacks_that_are_transposed(kind):
    config = {"model_type": "outer", "text_config": {"model_type": kind, "hidden_size": 32}}
    types = types_of(config)
    assert stacked("layers.0.mlp.experts.down_proj", (4, 48, 32), types) == Stack("transposed")
    assert stacked("layers.0.other", (4, 48, 32), types) == Stack()
    assert stacked("layers.0.mlp.experts.down_proj", (4, 48, 32), types_of(None)) == Stack()


def test_transformers_says_so():
    """`is_transposed` is set by its decorator, on each module."""
    names = ("hidden_size", "intermediate_size", "num_local_experts", "hidden_act")
    privacy = modeling_openai_privacy_filter.OpenAIPrivacyFilterExperts
    assert names
    for kind, expected in (
        (GptOssExperts, True),
        (AriaExperts, True),
        (privacy, True),
        (MixtralExperts, False),
    ):
        closure = dict(
            zip(kind.__init__.__code__.co_freevars, kind.__init__.__closure__, strict=True)
        )
        assert closure["is_transposed"].cell_contents is expected


def test_stacks_of_either_way_are_told_by_their_shape():
    types = types_of({"model_type": "qwen3_vl_moe", "text_config": {"hidden_size": 32}})
    up, down = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"
    assert (
        stacked(up, (4, 32, 96), types) == stacked(down, (4, 48, 32), types) == Stack("transposed")
    )
    assert stacked(up, (4, 96, 32), types) == stacked(down, (4, 32, 48), types) == Stack()


def test_experts_that_are_one_matrix():
    types = types_of({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 4}})
    assert stacked("blocks.0.ffn.experts.mlp.w1", (64, 32), types) == Stack(parts=4)
    assert stacked("blocks.0.attn.Wqkv.weight", (64, 32), types) == Stack()
    assert types == Types(frozenset({"dbrx"}), frozenset(), 4)


def test_what_transformers_cuts():
    """Every entry is a converter that cuts rows into as many tensors, and nothing else is missed
    that is looked up by a model's type."""
    cut = {}
    for kind, converters in _build_checkpoint_conversion_mapping().items():
        for each in converters:
            operations = [type(op).__name__ for op in getattr(each, "operations", ())]
            if operations[:1] == ["Chunk"] and each.operations[0].dim == 0:
                source = each.source_patterns[0].replace("\\", "").removeprefix(".")
                cut.setdefault(kind, {})[source] = len(each.target_patterns)
    for kind, ends in CUT.items():
        known = {
            name.lower().replace("_", "").removesuffix("model"): each for name, each in cut.items()
        }
        mapped = known[kind.replace("_", "")]
        for end, parts in ends.items():
            assert any(
                end.removesuffix(".weight") == s.removesuffix(".weight") and parts == n
                for s, n in mapped.items()
            ), end


@pytest.mark.parametrize("fmt", ["nvfp4", "int8", "mxfp4"])
def test_matrices_one_below_another(fmt, tmp_path):
    """Each third has the bits that it has alone, but for an outer scale, which servers keep once
    for all; a stack that lies transposed has those of its matrices."""
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(96, 32, generator=generator)
    experts = (
        torch.randn(3, 32, 48, generator=generator) * torch.tensor([1.0, 8.0, 0.1])[:, None, None]
    )
    tensors = {"layers.0.attn.Wqkv.weight": fused, "mlp.experts.up": experts}
    thirds = [fused] if fmt == "nvfp4" else fused.chunk(3)
    for kind, name, pieces in (
        ("nomic_bert", "layers.0.attn.Wqkv.weight", thirds),
        ("gpt_oss", "mlp.experts.up", to_stored(experts, "transposed")),
    ):
        model = write_model(tmp_path / kind, tensors, config={"model_type": kind})
        bs.quantize_directory(model, tmp_path / f"{kind}-out", fmt)
        found = _read_qtensor(open_stored_model(tmp_path / f"{kind}-out"), name).dequantize()
        expected = [bs.quantize(piece, fmt).dequantize() for piece in pieces]
        assert torch.equal(found.reshape(-1, found.shape[-1]), torch.cat(expected))
