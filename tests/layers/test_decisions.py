# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of a tensor that is described by name, shape and dtype alone."""

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.joined_weights import Member, group_note, sharing
from blockscale.layers.decisions import (
    CodesKey,
    Weight,
    decide,
    kept_by_default,
    why_not_bias_format,
    why_not_dtype,
    why_tied,
)

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


def weight(name: str = "a", role: Any = "layer", **more: Any) -> Weight:
    values: dict[str, Any] = {"names": (name,), "shape": (8, 16), "dtype": torch.float32}
    return Weight(f"{name}.weight" if role == "layer" else name, role=role, **(values | more))


EVERY = bs.Recipe("int8_channel")
VECTOR = "a vector, such as a norm's weight or a bias"
NO_FORMAT = "the recipe has no format for its weight"
BESIDE = "its input, output and bias are quantized only along with its weight"
NAMES = "a, b share one layer, and the recipe treats them differently"
PROFILE = "profile gguf.q8_0 is only for the weights of layers"


@pytest.mark.parametrize(
    ("of", "recipe", "status", "reason"),
    [
        (weight(), EVERY, "quantized", ""),
        (weight(stays="an adapter"), EVERY, "kept", "an adapter"),
        (weight(role="parameter", shape=(8,)), EVERY, "kept", VECTOR),
        (weight(names=("a", "b")), bs.Recipe("int8", skip=["b"]), "skipped", NAMES),
        (weight(names=("a", "b")), bs.Recipe("int8", skip=["a"]), "skipped", NAMES),
        (weight(), bs.Recipe(), "kept", NO_FORMAT),
        (weight(role="parameter"), bs.Recipe(None, "int8"), "kept", NO_FORMAT),
        (weight(), bs.Recipe("int8", skip=["a*"]), "kept", "pattern 'a*' of the recipe"),
        (weight(), bs.Recipe(None, "int8"), "skipped", BESIDE),
        (weight(unless_named="computed"), EVERY, "kept", "computed"),
        (weight(unless_named="computed"), bs.Recipe(rules={"a": "int8"}), "quantized", ""),
        (weight("gate"), EVERY, "kept", "a router, kept in float by default"),
        (weight("gate", refusal="no"), EVERY, "kept", "a router, kept in float by default"),
        (weight("pos_embed", role="parameter"), EVERY, "kept", "a position table, kept"),
        (weight("pos_embed", role="part"), EVERY, "quantized", ""),
        (weight(refusal="no data"), EVERY, "skipped", "no data"),
        (weight(role="parameter", shape=(64, 64)), bs.Recipe("profile:gguf.q8_0"), "skipped",
         PROFILE),
        (weight(shape=(8, 48)), bs.Recipe("profile:gguf.q8_0"), "skipped", "profile gguf.q8_0"),
        (weight(), bs.Recipe("int8:channel2:fp32"), "skipped", "block 'channel2' needs dimension"),
        (weight(parts=3), EVERY, "skipped", "8 rows cannot be divided into 3 equal parts"),
    ],
)  # fmt: skip
def test_the_first_reason_decides(of: Weight, recipe: bs.Recipe, status: str, reason: str) -> None:
    found = decide(of, recipe)
    assert (found.status, found.format is None) == (status, status != "quantized")
    assert found.reason.startswith(reason) if reason else not found.reason


@pytest.mark.parametrize(
    ("of", "fmt"),
    [
        (weight(), "int8:tensor:fp32"),
        (weight(parts=2), "int8:block4x*:fp32"),
        (weight(role="parameter", shape=(64, 4, 8)), "int8:block*x*:fp32"),
        (weight(role="parameter", shape=(64, 4, 8), parts=2), "int8:block2x*:fp32"),
        (weight(role="parameter", shape=(64, 4, 8), parts=2, layout="transposed"),
         "int8:block4x*:fp32"),
        (weight(shape=(4, 8, 3, 3), layout="channels_last"), "int8:tensor:fp32"),
    ],
)  # fmt: skip
def test_the_format_is_that_of_each_matrix_by_itself(of: Weight, fmt: str) -> None:
    assert str(decide(of, bs.Recipe("int8:tensor:fp32")).format) == fmt


def test_a_layer_has_the_formats_of_its_input_and_bias_and_a_parameter_has_none() -> None:
    recipe = bs.Recipe("int8", "int8_token", rules={"a.bias": {"bias": None}}, bias="int16")
    scheme = decide(weight(), recipe).scheme
    assert (str(scheme.input), scheme.bias) == ("int8:token:fp32", None)
    assert str(decide(weight("b"), recipe).scheme.bias) == "int16:tensor:fp32"
    alone = decide(weight(role="parameter", shape=(64, 64)), recipe).scheme
    assert (alone.input, alone.bias, alone.weight) == (None, None, recipe.weight)


def test_dtypes() -> None:
    assert why_not_dtype(torch.bfloat16) == ""
    assert (
        why_not_dtype(torch.float64)
        == "float64; only float32, bfloat16 and float16 can be quantized"
    )
    assert (
        why_not_dtype("F8_E8M0") == "F8_E8M0; only float32, bfloat16 and float16 can be quantized"
    )


def test_formats_of_biases() -> None:
    assert why_not_bias_format((8,), bs.parse("int8")) == ""
    assert "tile2x2" in why_not_bias_format((8,), bs.parse("int8:tile2x2:fp32"))
    assert "its format is" in why_not_bias_format((8,), bs.parse("int8:tensor:e8m0/given"))


def test_tied_weights_share_codes_or_none_has_them() -> None:
    one, other = CodesKey("int8", "plain", None), CodesKey("int8", "transposed", None)
    assert why_tied("a", {"a": one, "b": one}) == ""
    assert why_tied("a", {"a": None, "b": one}) == ""
    for wanted in ({"a": one, "b": other}, {"a": one, "b": None}):
        assert why_tied("a", wanted) == "its weight is tied to b, which cannot share its codes"
    assert "tied to c, which" in why_tied("a", {"a": one}, ["c"])


def test_which_weights_share_an_outer_scale() -> None:
    """Rows may differ, what is summed may not; stacks share it matrix by matrix."""
    nvfp4 = bs.parse("nvfp4")
    members = {
        "q_proj": Member(nvfp4, (32, 16)),
        "k_proj": Member(nvfp4, (16, 16)),
        "v_proj": Member(nvfp4, (16, 32)),
        "gate_proj": Member(bs.parse("mxfp4"), (16, 16)),
    }
    groups, alone = sharing(members, members, True)
    assert groups == {"q_proj": ("q_proj", "k_proj"), "k_proj": ("q_proj", "k_proj")}
    told = "outer scale not shared with v_proj, gate_proj: not quantized in the same format"
    assert alone["q_proj"] == told
    assert group_note("q_proj", groups["q_proj"], told) == (
        f"outer scale shared with k_proj, {told}"
    )
    assert group_note("o_proj", ()) == ""
    assert sharing(members, members, False) == ({}, {})
