# SPDX-License-Identifier: BSD-3-Clause
"""Attention that reads a cache's codes, beside attention over what is decoded."""

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.integrations.transformers import QuantizedCache, cached_states
from blockscale.integrations.transformers.cache import QuantizedLayer
from blockscale.integrations.transformers.cached_states import CachedStates
from blockscale.ops.attention import cached_attention
from tests.support.rotation_models import decoder


def states(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, tokens, 8), torch.randn(2, 3, tokens, 8)


def attended(
    model: torch.nn.Module, implementation: str, monkeypatch: pytest.MonkeyPatch, **cache: Any
) -> tuple[torch.Tensor, int]:
    """Logits [2, 9, vocabulary] of two rows, one padded, fed in pieces; and how often codes were
    read."""
    calls = []
    monkeypatch.setattr(
        cached_states,
        "cached_attention",
        lambda *call: calls.append(call) or cached_attention(*call),
    )
    model.set_attn_implementation(implementation)
    held = QuantizedCache(model.config, window=0, **cache)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 60, (2, 75), generator=draw)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    pieces, at = [], 0
    with torch.no_grad():
        for size in (66, 1, 2, 1, 5):
            seen, at = mask[:, : at + size], at + size
            pieces.append(
                model(tokens[:, at - size : at], past_key_values=held, attention_mask=seen)
            )
    return torch.cat([each.logits for each in pieces[1:]], 1), len(calls)


@pytest.mark.parametrize("arch", ["qwen3", "mistral"])
@pytest.mark.parametrize(
    "cache",
    [{"values": "int8_token"}, {"values": "nvfp4"}, {"values": "int4:group8:fp32", "keys": "mxfp8"},
     {"values": "int8_token", "rotate": "hadamard"}, {"values": "mxfp4", "rotate": "hadamard:2"}],
)  # fmt: skip
def test_codes_are_read_where_a_kernel_does(
    arch: str, cache: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As attention over what is decoded, with padding, groups of heads and several new tokens."""
    model = decoder(arch, torch.float32)
    model.config.sliding_window = None
    model.config.use_cache = True
    read, calls = attended(model, "sdpa", monkeypatch, **cache)
    decoded, none = attended(model, "eager", monkeypatch, **cache)
    several = model.config.num_key_value_heads == model.config.num_attention_heads  # else repeated
    assert calls == (4 if several else 2) * model.config.num_hidden_layers
    assert none == 0
    assert (read - decoded).abs().max() < 1e-4 * decoded.abs().max()


def test_what_attention_over_codes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, training and other ops read what is decoded, to the bit."""
    keys, values = states(40)
    layer = QuantizedLayer(bs.parse("int8_token"), bs.parse("int8_token"), "token", 0)
    layer.update(keys, values)
    k, v = layer.update(keys[:, :, :1], values[:, :, :1])
    assert isinstance(k, CachedStates) and k.shape == v.shape == (2, 3, 41, 8)
    monkeypatch.setattr(cached_states, "cached_attention", None)
    query = torch.randn(2, 3, 1, 8, requires_grad=True)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    plain = [x.clone() for x in (k, v)]
    assert not any(isinstance(x, CachedStates) for x in plain)
    assert torch.equal(sdpa(query, k, v), sdpa(query, *plain))
    assert torch.equal(sdpa(query.detach(), k, v, is_causal=True),
                       sdpa(query.detach(), *plain, is_causal=True))  # fmt: skip
    assert torch.equal(sdpa(query.detach(), k, plain[1]), sdpa(query.detach(), *plain))
    assert torch.equal(k @ query.mT, plain[0] @ query.mT)
    sdpa(query, k, v).sum().backward()
    assert query.grad is not None
