# SPDX-License-Identifier: BSD-3-Clause
"""What stays in float by default, by the names that models give it."""

import pytest

from blockscale.layers.defaults import kept_by_default

KEPT = (
    "model.layers.0.mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight",
    "feed_forward.router.weight", "mlp.shared_expert_gate.weight", "mixer.A_log", "pos_embed",
    "vit.embeddings.position_embeddings", "attn.relative_position_bias_table", "attn.rel_pos_h",
    "vit.embeddings.cls_token", "mask_token", "grn.gamma", "r_w_bias", "experts.gate_up_proj_bias",
    "attn.logit_scale", "block.attention.time_decay", "quantizer.layers.0.codebook.embed",
)  # fmt: skip
QUANTIZED = (
    "mlp.experts.gate_up_proj", "mlp.experts.down_proj", "attn.in_proj_weight", "rel_attn.q",
    "mlp.gate_proj.weight", "experts.gate_proj", "text_projection", "visual.proj", "weight",
)  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    assert "kept in float by default" in kept_by_default(name, (64, 128))


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(name: str) -> None:
    assert kept_by_default(name, (64, 128)) == ""
    assert "small table" in kept_by_default(name, (8, 8))
    assert kept_by_default(name, (1, 128, 1)).startswith("a vector")
