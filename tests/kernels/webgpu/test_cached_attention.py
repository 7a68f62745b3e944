# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a cache in codes on the GPU, against torch's in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand
from blockscale.kernels.registry import find
from blockscale.kernels.webgpu import cached_attention as ours
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from blockscale.ops.attention import cached_attention
from blockscale.ops.op import OPS
from tests.kernels.webgpu.here import here
from tests.support.caches import across, cached, exact

FORMATS = ("int8_token", "e4m3:token:fp32", "mxfp8", "nvfp4_token", "mxfp4", "int4:group32:fp16")
OTHERS = ("uint4:group16:fp16:asym", "nf4:group64:fp32", "int3:group32:fp32", "e2m3:group32:e8m0",
          "uint4:group32:fp16:offset", "e2m1:group16:(e5m2:token:fp32)", "int4:flat32:fp32",
          "log4:group32:fp32", "int8:tensor:fp32", "ternary:group16:bf16", "nvfp4",
          "uint4:group32:fp16:asym(fp16)", "int5:group8:bf16")  # fmt: skip


def slow(*case: object) -> object:
    """A case of the slow tests."""
    return pytest.param(*case, marks=pytest.mark.slow)


def oracle(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """torch's attention in float64, where a new token sees those before it and itself."""
    new, count = query.shape[2], key.shape[2]
    if mask is None:
        mask = torch.ones(new, count, dtype=torch.bool).tril(count - new)
    elif mask.dtype != torch.bool:
        mask = mask.double()
    return F.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), mask, scale=scaling, enable_gqa=True
    )


def takes_it(call: tuple) -> bool:
    """Whether the kernel takes a call."""
    device, spellings = call[0].device.type, (call[1].fmt, call[2].fmt)
    kernel = find("cached_attention", spellings, device, call, composite=True)
    return kernel is not None and kernel.backend == "webgpu"


def attend(*call: object) -> Tensor:
    """By the kernel, to and from the GPU."""
    with bs.use("webgpu"):
        assert takes_it(call)
        return cached_attention(*call)


def near(y: Tensor, expected: Tensor, value: Tensor, rounding: float = 0.0) -> None:
    """Within the op's ulps of the largest value, and one rounding of the result."""
    bound = OPS["cached_attention"].ulps * 2.0**-24 * value.abs().max().item()
    assert y.isfinite().all()
    assert ((y.double() - expected).abs() <= bound + rounding * expected.abs()).all()


@pytest.mark.parametrize("fmt", ["int8_token", *map(slow, FORMATS[1:])])
def test_formats(fmt: str) -> None:
    """Two parts of codes, of which the last is short, and one of floats; four queries of a head."""
    keys, values, k, v, key, value = cached(fmt, 270, 5)
    query = torch.randn(2, 8, 1, 64)
    y = attend(query, keys, values, k, v, None, 0.125, None)
    near(y, oracle(query, key, value, None, 0.125), value)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [*FORMATS, *OTHERS])
def test_every_format_of_few_new_tokens(fmt: str) -> None:
    """Of a head each, and of six queries of a head; without recent tokens, and with some."""
    for heads, recent in ((2, 3), (4, 40)):
        keys, values, k, v, key, value = cached(fmt, 70, recent, values="int8_token")
        query = torch.randn(2, heads, 3, 64)
        y = attend(query, keys, values, k, v, None, 0.2, None)
        near(y, oracle(query, key, value, None, 0.2), value)
        keys, values, k, v, key, value = cached("int8_token", 70, recent, values=fmt)
        y = attend(query, keys, values, k, v, None, 0.2, None)
        near(y, oracle(query, key, value, None, 0.2), value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "new", "tokens", "recent", "depth", "width"),
    [
        (6, 3, 1, 3, 64, 64),  # one token in codes; nine queries: two groups of rows
        (2, 1, 257, 0, 96, 20),  # a part of one token, no recent ones; slots that leave lanes over
        (2, 1, 512, 0, 32, 96),  # whole parts
        (8, 1, 33, 300, 128, 32),  # recent tokens in two parts
        (64, 2, 40, 2, 256, 8),  # 64 queries of a head, for which a workgroup has less room
        (2, 2, 5, 2, 12, 1024),  # one slot
    ],
)
def test_shapes(heads: int, new: int, tokens: int, recent: int, depth: int, width: int) -> None:
    keys, values, k, v, key, value = cached(
        "int4:group4:fp32", tokens, recent, depth=depth, width=width, values="int8:token:fp32"
    )
    query = torch.randn(2, heads, new, depth)
    mask = None if recent >= new else torch.ones(1, 1, new, tokens, dtype=torch.bool)
    y = attend(query, keys, values, k, v, mask, 0.2, None)
    near(y, oracle(query, key, value, mask, 0.2), value)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_come_back(dtype: torch.dtype) -> None:
    keys, values, k, v, key, value = cached("int8_token", 40, 3)
    query = torch.randn(2, 4, 1, 64).to(dtype)
    mask = torch.randn(1, 43).to(dtype)
    y = attend(query, keys, values, k.to(dtype), v.to(dtype), mask, 0.1, None)
    assert y.dtype == dtype
    key, value = (
        torch.cat([x[:, :, :40], x[:, :, 40:].to(dtype).float()], 2) for x in (key, value)
    )
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    near(y, oracle(query.float(), key, value, mask, 0.1), value, rounding)


@pytest.mark.parametrize(
    ("kind", "heads"), [("seen", 4), slow("added", 4), slow("seen", 1), slow("added", 1)]
)
def test_masks(kind: str, heads: int) -> None:
    """Of each head or of all; also where a row sees nothing, of a part or at all: zeros."""
    keys, values, k, v, key, value = cached("int8_token", 260, 2)
    query = torch.randn(2, 4, 2, 64)
    seen = torch.rand(2, heads, 2, 262) < 0.6
    seen[0, 0, 1] = False
    seen[1, :, :, :256] = False
    mask = seen if kind == "seen" else torch.randn(2, heads, 2, 262)
    y = attend(query, keys, values, k, v, mask, 0.125, None)
    near(y, oracle(query, key, value, mask, 0.125).nan_to_num(), value)
    if kind == "seen":
        assert not y[0, 0, 1].any()


def test_sinks() -> None:
    """A score of each head that takes its share and gives nothing; also where nothing is seen."""
    keys, values, k, v, key, value = cached("int8_token", 260, 2)
    query, sinks = torch.randn(2, 4, 2, 64), torch.randn(4) * 4
    sinks[1], sinks[2], sinks[3] = 60.0, -60.0, -math.inf
    seen = torch.rand(2, 1, 2, 262) < 0.6
    seen[0, 0, 1] = False
    y = attend(query, keys, values, k, v, seen, 0.125, sinks)
    near(y, exact(query, key, value, seen, None, 0.125, sinks), value)


def nan_places(call: list) -> Tensor:
    """Where the reference has NaN, and the kernel with it."""
    y = attend(*call)
    with bs.use("reference"):
        expected = cached_attention(*call)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())
    return y.isnan()


def test_what_is_not_finite_stays_where_the_reference_has_it() -> None:
    """Of a query, a key's scale and a value, in codes and among recent tokens; infinite scores."""
    keys, values, k, v, _, _ = cached("int8_token", 20, 2)
    query = torch.randn(2, 8, 1, 64)
    call = [query, keys, values, k, v, None, 0.125, None]
    assert not nan_places(call).any()
    query[0, 1] = math.nan
    keys.scale[0, 1, 3] = math.nan  # of the last four heads of the first sequence
    values.scale[1, 0, 2] = math.nan
    v[1, 1, 0, 5] = math.nan
    bad = nan_places(call)
    assert bad[0, 4:].all() and bad[0, 1].all() and not bad[0, 2:4].any()
    assert bad[1, :4].all() and bad[1, 4:].sum() == 4
    query[0, 0, 0, 3] = math.inf
    k[1, 1, 0] = math.inf
    assert nan_places(call)[0, 0].all()


@pytest.mark.slow
def test_numbers_of_all_sizes() -> None:
    """What float sums are not trusted with: huge queries, and steps near the largest float."""
    keys, values, k, v, key, value = cached("mxfp8", 40, 2, batch=1)
    query = torch.randn(1, 8, 1, 64) * 2.0**30
    y = attend(query, keys, values, k, v, None, 2.0**-33, None)
    near(y, oracle(query, key, value, None, 2.0**-33), value)
    values.scale[0, 0, 3, 1], values.codes[0, 0, 3, 32:] = 254, 8  # 2^127 times 2^-6
    value[0, 0, 3, 32:] = 2.0**121
    y = attend(query, keys, values, k, v, None, 2.0**-33, None)
    near(y, oracle(query, key, value, None, 2.0**-33), value)


@pytest.mark.slow
def test_what_goes_together_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of a workgroup, and heads of a launch, where a GPU does not see all at once."""
    keys, values, k, v, _, _ = cached("nvfp4_token", 64, 3, width=32)
    call = (torch.randn(2, 8, 2, 64), keys, values, k, v, torch.randn(2, 8, 2, 67), 0.2, None)
    whole = attend(*call)
    monkeypatch.setattr(ours, "most", lambda *_: 3)
    monkeypatch.setattr(ours, "_ROWS", 4)
    assert torch.equal(attend(*call), whole)


def test_tensors_on_the_device_stay_there() -> None:
    """The op itself, without a copy to the CPU."""
    keys, values, k, v, key, value = cached("int8_token", 20, 2)
    query = torch.randn(2, 8, 1, 64)
    device = bs.webgpu()
    there = [
        each._replace(codes=each.codes.to(device), scale=each.scale.to(device))
        for each in (keys, values)
    ]
    call = (query.to(device), *there, k.to(device), v.to(device), None, 0.125, None)
    assert takes_it(call)
    y = cached_attention(*call)
    assert isinstance(y, WebGPUTensor)
    near(here(y), oracle(query, key, value, None, 0.125), value)


def test_what_goes_by_the_reference() -> None:
    keys, values, k, v, _, _ = cached("int8_token", 32, 2)
    query = torch.randn(2, 4, 1, 64)

    def takes(query: Tensor, keys: Operand, *others: object) -> bool:
        with bs.use("webgpu"):
            return takes_it((query, keys, values, *others))

    assert takes(query, keys, k, v, None, 0.1)
    assert not takes(torch.randn(2, 4, 33, 64), keys, k, v, None, 0.1)  # 66 queries of a head
    assert not takes(query, keys, k[:, :1], v, None, 0.1)
    assert not takes(query, keys, k, v, torch.zeros(34, dtype=torch.int32), 0.1)
    per_channel = across("int4:group32:fp32", 32, 1, 2)[0]
    assert not takes(query, per_channel, k, v, None, 0.1)
    for fmt, depth in (("int8:tile16x32:fp32", 64), ("int8:channel1:fp32", 64),
                       ("int8_token", 30), ("int12:token:fp32", 64)):  # fmt: skip
        keys, values, k, v, _, _ = cached(fmt, 32, 2, depth=depth, width=depth)
        assert not takes(torch.randn(2, 4, 1, depth), keys, k, v, None, 0.1), fmt


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:webgpu has no kernel")
def test_a_model_reads_the_codes_of_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Llama on the device: each new token's attention is the kernel's, and the CPU's logits."""
    transformers = pytest.importorskip("transformers")
    from blockscale.integrations.transformers import QuantizedCache

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model, calls = transformers.LlamaForCausalLM(config).eval(), []
    ids, kernel = torch.randint(0, 64, (1, 39)), ours._attend
    monkeypatch.setattr(ours, "_attend", lambda *call: (calls.append(call), kernel(*call)))

    def logits(ids: Tensor) -> Tensor:
        cache = QuantizedCache(config, "int8_token", window=0)
        parts = (ids[:, :36], ids[:, 36:37], ids[:, 37:])  # the last two tokens at once
        with torch.no_grad():
            return torch.cat([model(each, past_key_values=cache).logits.cpu() for each in parts], 1)

    expected = logits(ids)
    assert not calls
    device = bs.webgpu()
    model.to(device)
    y = logits(ids.to(device))
    assert len(calls) == 4
    assert (y - expected).abs().max() < 1e-5
