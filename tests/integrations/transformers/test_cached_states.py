# SPDX-License-Identifier: BSD-3-Clause
"""Attention that reads a cache's codes, beside attention over what is decoded."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations.sdpa_attention import repeat_kv

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
    model: torch.nn.Module, implementation: str, monkeypatch: pytest.MonkeyPatch,
    kernel: bool = True, **cache: Any,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    """Logits [2, 9, vocabulary] of two rows, one padded, fed in pieces; and how often codes were
    read: never without the kernel. All codes are of the first piece, which reads floats, so that
    they are the same either way."""
    calls = []
    counted = SimpleNamespace(
        by_kernel=lambda *call: calls.append(call) or cached_attention.by_kernel(*call)
        if kernel else None
    )  # fmt: skip
    monkeypatch.setattr(cached_states, "cached_attention", counted)
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
     {"values": "int8_token", "rotate": "hadamard"}, {"values": "mxfp4", "rotate": "hadamard:2"},
     {"values": "int4:group8:fp32:asym", "keys_per": "channel"},
     {"values": "int8_token", "keys": "nvfp4", "keys_per": "channel", "rotate": "hadamard"}],
)  # fmt: skip
def test_codes_are_read_where_a_kernel_does(
    arch: str, cache: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As attention over what is decoded, with padding, groups of heads and several new tokens."""
    model = decoder(arch, torch.float32)
    model.config.sliding_window = None
    model.config.use_cache = True
    read, calls = attended(model, "sdpa", monkeypatch, **cache)
    decoded, none = attended(model, "sdpa", monkeypatch, kernel=False, **cache)
    assert calls == 4 * model.config.num_hidden_layers  # of 5, the first reads no codes
    assert none == 0
    assert (read - decoded).abs().max() < 1e-4 * decoded.abs().max()


def windowed() -> torch.nn.Module:
    """A layer with a window of 16 tokens, and one without."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=99, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, use_sliding_window=True,
        sliding_window=16, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5 if parameter.ndim > 1 else 1
    return model


@pytest.mark.filterwarnings("ignore")
def test_sliding_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked over codes as over what is decoded, and in floats as without a cache."""
    model = windowed()
    read, calls = attended(model, "sdpa", monkeypatch, values="int8_token")
    decoded, _ = attended(model, "sdpa", monkeypatch, kernel=False, values="int8_token")
    assert calls == 4 * 2
    assert (read - decoded).abs().max() < 1e-4 * decoded.abs().max()
    tokens = torch.randint(3, 60, (2, 75), generator=torch.Generator().manual_seed(1))
    model.set_attn_implementation("sdpa")
    held = QuantizedCache(model.config, "int8_token", window=1000)
    with torch.no_grad():
        pieces = [model(x, past_key_values=held).logits for x in tokens.split([40, 1, 2, 32], 1)]
        whole = model(tokens, use_cache=False).logits
    assert (torch.cat(pieces, 1) - whole).abs().max() < 1e-4 * whole.abs().max()


def test_what_attention_over_codes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, training and other ops read what is decoded, to the bit."""
    keys, values = states(40)
    layer = QuantizedLayer((bs.parse("int8_token"),) * 2, "token", 0)
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


def test_repeated_heads_stay_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers repeats them; a slice, another shape or half a repetition is decoded."""
    keys, values = states(40)
    layer = QuantizedLayer((bs.parse("int8_token"),) * 2, "token", 0)
    layer.update(keys, values)
    k, v = layer.update(keys[:, :, :1], values[:, :, :1])
    wide = [repeat_kv(x, 2) for x in (k, v)]
    assert all(isinstance(x, CachedStates) and x.shape == (2, 6, 41, 8) for x in wide)
    plain = [x.clone().repeat_interleave(2, 1) for x in (k, v)]
    assert all(torch.equal(x.clone(), y) for x, y in zip(wide, plain, strict=True))
    apart = k[:, :, None, :, :]
    assert isinstance(apart, CachedStates) and apart.shape == (2, 3, 1, 41, 8)
    assert torch.equal(apart.expand(2, 3, 2, 41, 8).clone()[:, :, 1], k.clone())
    others = [k[:, :, 1:], k[:, :, None], k[0], apart.expand(2, 3, 2, -1, -1), k[k[:, :, :, 0] > 0]]
    for other in (*others, apart.reshape(6, 41, 8), k.reshape(2, 3, 41 * 8), k.expand(2, 3, 41, 8)):
        assert not isinstance(other, CachedStates)
    query, mask = torch.randn(2, 6, 3, 8), torch.rand(2, 1, 3, 41) < 0.7
    sdpa = torch.nn.functional.scaled_dot_product_attention
    assert (sdpa(query, *wide, mask) - sdpa(query, *plain, mask)).abs().max() < 1e-5
    assert (sdpa(query, *wide) - sdpa(query, *plain)).abs().max() < 1e-5


def gpt_oss() -> torch.nn.Module:
    """Of two layers, one with a window of 16 tokens, whose sinks count."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=99, hidden_size=48, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=16,
        num_local_experts=2, num_experts_per_tok=1, rope_scaling=None,
    )  # fmt: skip
    model = GptOssForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5 if parameter.ndim > 1 else 1
        for layer in model.model.layers:
            layer.self_attn.sinks.copy_(torch.randn(4) * 2 + 2)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per", ["token", "channel"])
def test_sinks_of_gpt_oss(per: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over codes as over what is decoded, and without a cache as transformers' eager attention."""
    model = gpt_oss()
    cache = {"values": "int8:group8:fp32", "keys_per": per}
    read, calls = attended(model, "blockscale", monkeypatch, **cache)
    decoded, none = attended(model, "blockscale", monkeypatch, kernel=False, **cache)
    assert calls == 4 * 2 and none == 0
    assert (read - decoded).abs().max() < 1e-4 * decoded.abs().max()
    tokens = torch.randint(3, 60, (2, 40), generator=torch.Generator().manual_seed(1))
    each = []
    for implementation in ("blockscale", "eager"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            each.append(model(tokens, use_cache=False).logits)
    assert (each[0] - each[1]).abs().max() < 1e-4 * each[1].abs().max()
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(-1e4)
    with torch.no_grad():
        assert (model(tokens, use_cache=False).logits - each[1]).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore")
def test_the_name_serves_models_without_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = windowed()
    read, calls = attended(model, "blockscale", monkeypatch, values="int8_token")
    by_torch, _ = attended(model, "sdpa", monkeypatch, values="int8_token")
    assert calls == 4 * 2 and torch.equal(read, by_torch)
