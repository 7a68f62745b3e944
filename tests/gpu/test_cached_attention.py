# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a cache in codes on a GPU. Needs CUDA: `pytest -m gpu
tests/gpu/test_cached_attention.py`."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.kernels.registry import find
from blockscale.ops.attention import cached_attention
from tests.support.caches import across, cached, exact

pytestmark = pytest.mark.gpu

FORMATS = ("int8_token", "int4:group32:fp16", "mxfp4", "nvfp4_token", "mxfp8", "e4m3:token:fp32",
           "e5m2:group64:fp32", "int2:group32:fp32", "int4:group32:fp16:asym")  # fmt: skip
CHANNELS = (  # keys, tokens of a chunk, values
    ("int4:group32:fp16", 32, "int4:group32:fp16"),
    ("int4:group32:fp16:asym", 32, "int4:group32:fp16:asym"),
    ("uint2:group32:fp16:asym", 32, "uint2:group32:fp16:asym"),
    ("int8:group32:fp16", 32, "int8_token"),
    ("int4:group128:fp32", 128, "int8_token"),
    ("mxfp4", 32, "mxfp4"),
    ("nvfp4_token", 32, "nvfp4_token"),
    ("int2:group64:bf16", 64, "mxfp8"),
)


def ours(call: tuple) -> Tensor:
    on_gpu = [
        each.cuda() if isinstance(each, Tensor)
        else each._replace(**{
            name: part.cuda() for name in ("codes", "scale", "zero_point", "outer")
            if (part := getattr(each, name)) is not None
        })
        for each in call[:5]
    ]  # fmt: skip
    mask = None if call[5] is None else call[5].cuda()
    whole = (*on_gpu, mask, call[6], None if len(call) < 8 else call[7].cuda())
    formats = (call[1].fmt, call[2].fmt)
    assert find("cached_attention", formats, "cuda", whole, composite=True) is not None
    y = cached_attention(*whole)
    assert torch.equal(y, cached_attention(*whole))
    return y.cpu().double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", FORMATS)
def test_formats(fmt: str, dtype: torch.dtype) -> None:
    """Many parts, a short one last; within 64 * 2^-24 of the largest value, and one rounding."""
    keys, values, k, v, key, value = cached(fmt, 5000, 40, depth=128, width=128)
    torch.manual_seed(0)
    query, k, v = torch.randn(2, 8, 1, 128).to(dtype), k.to(dtype), v.to(dtype)
    key[:, :, 5000:], value[:, :, 5000:] = k, v
    y = ours((query, keys, values, k, v, None, 128**-0.5))
    expected = exact(query.float(), key, value, None, None, 128**-0.5)
    bound = 64 * 2.0**-24 * value.abs().max()
    if dtype == torch.bfloat16:
        bound = bound + 2.0**-8 * expected.abs()
    assert ((y - expected).abs() <= bound).all(), (y - expected).abs().max()


@pytest.mark.parametrize(
    ("heads", "new", "depth", "width"),
    [(32, 1, 64, 64), (2, 1, 96, 160), (16, 3, 128, 64), (8, 16, 64, 64)],
)
@pytest.mark.parametrize("masked", [False, True])
def test_shapes(heads: int, new: int, depth: int, width: int, masked: bool) -> None:
    keys, values, k, v, key, value = cached(
        "int4:group32:fp32", 1111, 50, depth=depth, width=width, values="int8:token:fp32"
    )
    torch.manual_seed(0)
    query = torch.randn(2, heads, new, depth)
    mask = torch.rand(2, 1, new, 1161) < 0.5 if masked else None
    y = ours((query, keys, values, k, v, mask, 0.2))
    assert (y - exact(query, key, value, mask, None, 0.2)).abs().max() < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("fmt", "chunk", "values"), CHANNELS)
def test_keys_per_channel(fmt: str, chunk: int, values: str, dtype: torch.dtype) -> None:
    """Many parts, a short one last, the bound of `test_formats`; of both two numbers of a bfloat16
    query leave less than its rounding."""
    keys, values_, k, v, key, value = across(
        fmt, chunk, 4640 // chunk, 40, depth=128, values=values
    )
    torch.manual_seed(0)
    query, k, v = torch.randn(2, 8, 1, 128).to(dtype), k.to(dtype), v.to(dtype)
    tokens = 4640 // chunk * chunk
    key[:, :, tokens:], value[:, :, tokens:] = k, v
    y = ours((query, keys, values_, k, v, None, 128**-0.5))
    expected = exact(query.float(), key, value, None, None, 128**-0.5)
    bound = 64 * 2.0**-24 * value.abs().max()
    if dtype == torch.bfloat16:
        bound = bound + 2.0**-8 * expected.abs()
    assert ((y - expected).abs() <= bound).all(), (y - expected).abs().max()


@pytest.mark.parametrize(
    ("heads", "new", "depth"), [(32, 1, 64), (2, 1, 96), (8, 3, 128), (16, 2, 64), (2, 1, 80)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_shapes_of_keys_per_channel(heads: int, new: int, depth: int, masked: bool) -> None:
    keys, values, k, v, key, value = across(
        "uint4:group32:fp16:asym", 32, 35, 50, depth=depth, values="int8:token:fp32"
    )
    torch.manual_seed(0)
    query = torch.randn(2, heads, new, depth)
    mask = torch.rand(2, 1, new, 1170) < 0.5 if masked else None
    sinks = torch.randn(heads) * 4
    y = ours((query, keys, values, k, v, mask, 0.2, sinks))
    assert (y - exact(query, key, value, mask, None, 0.2, sinks)).abs().max() < 2e-5


@pytest.mark.parametrize("fmt", ["int8_token", "nvfp4_token"])
def test_sinks(fmt: str) -> None:
    """A score of each head that takes its share and gives nothing."""
    keys, values, k, v, key, value = cached(fmt, 1111, 3)
    torch.manual_seed(0)
    query, sinks = torch.randn(2, 8, 3, 64), torch.randn(8) * 4
    y = ours((query, keys, values, k, v, None, 0.125, sinks))
    assert (y - exact(query, key, value, None, None, 0.125, sinks)).abs().max() < 2e-5


def test_steps_of_a_generation_are_compiled_once() -> None:
    """Twenty steps, each with a recent token more."""
    from blockscale.kernels.cuda.cached_attention import add_parts, attend
    from blockscale.kernels.cuda.relaunch import direct

    keys, values, k, v, _, _ = cached("int8_token", 640, 25)
    query = torch.randn(2, 6, 1, 64)
    known = []
    for recent in range(3, 23):
        few = [x[:, :, :recent].contiguous() for x in (k, v)]
        mask = torch.zeros(2, 1, 1, 640 + recent)
        ours((query, keys, values, *few, mask, 0.125))
        known.append([len(direct(kernel).compiled) for kernel in (attend, add_parts)])
    assert known[0] == known[-1]


@pytest.mark.parametrize("per", ["token", "channel"])
def test_generate_takes_the_kernel(per: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of `generate` with a quantized cache, whose steps are one call a layer."""
    transformers = pytest.importorskip("transformers")
    from blockscale.integrations.transformers import cached_states
    from blockscale.integrations.transformers.cache import QuantizedCache

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).cuda().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 4 if weight.dim() > 1 else 1
    calls = []

    counted = SimpleNamespace(
        by_kernel=lambda *call: calls.append(call) or cached_attention.by_kernel(*call)
    )
    monkeypatch.setattr(cached_states, "cached_attention", counted)
    ids = torch.randint(0, 256, (2, 200), device="cuda")

    def generated() -> Tensor:
        fmt = "int8_token" if per == "token" else "int8:group32:fp16:asym"
        cache = QuantizedCache(config, fmt, keys_per=per, window=16)
        return model.generate(
            ids, past_key_values=cache, max_new_tokens=24, do_sample=False, eos_token_id=None,
            pad_token_id=0, attention_mask=torch.ones_like(ids),
        )  # fmt: skip

    tokens = generated()
    assert len(calls) == 2 * 23
    with bs.use("reference"):
        assert torch.equal(tokens, generated())
