# SPDX-License-Identifier: BSD-3-Clause
"""What is found of a model's residual stream."""

import pytest

from blockscale.calibration.residual_stream import UnrotatableError, stream_of
from tests.support.rotation_models import batches, decoder


def test_a_llama() -> None:
    found = stream_of(decoder("llama"), batches()[0])
    assert (found.size, found.tied, found.keeps_mean) == (48, True, False)
    assert [norm.name for norm in found.norms][-1] == "model.norm" and len(found.norms) == 5
    block = "model.layers.0."
    uses = {
        (
            u.parameter.removeprefix(block),
            u.dim,
            u.norm and u.norm.name.removeprefix(block),
            u.heads,
        )
        for u in found.uses
        if u.parameter.startswith(block)
    }
    first, second = "input_layernorm", "post_attention_layernorm"
    assert uses == {
        *((f"self_attn.{x}_proj.weight", -1, first, 0) for x in "qkv"),
        ("self_attn.o_proj.weight", -2, None, 0),
        ("self_attn.o_proj.bias", -1, None, 0),
        ("self_attn.v_proj.weight", -2, None, 12),
        ("self_attn.v_proj.bias", -1, None, 12),
        ("self_attn.o_proj.weight", -1, None, 12),
        *((f"mlp.{x}_proj.weight", -1, second, 0) for x in ("gate", "up")),
        ("mlp.down_proj.weight", -2, None, 0),
        ("mlp.down_proj.bias", -1, None, 0),
    }


def test_kinds_of_norms() -> None:
    gemma = stream_of(decoder("gemma"), batches()[0]).norms
    assert all(norm.adds_one and not norm.subtracts_mean for norm in gemma)
    gpt2 = stream_of(decoder("gpt2"), batches()[0]).norms
    assert all(norm.subtracts_mean and not norm.adds_one for norm in gpt2)


def test_norms_after_layers_are_refused_by_name() -> None:
    with pytest.raises(UnrotatableError, match="post_attention_layernorm"):
        stream_of(decoder("gemma2"), batches()[0])
