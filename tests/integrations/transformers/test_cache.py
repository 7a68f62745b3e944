# SPDX-License-Identifier: BSD-3-Clause
"""A quantized cache against attention over fake-quantized keys and values."""

import pytest
import torch

import blockscale as bs
from blockscale.integrations.transformers import QuantizedCache
from blockscale.integrations.transformers.cache import QuantizedLayer
from tests.support.rotation_models import decoder

G = "int4:group4:fp32"


def states(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, tokens, 8), torch.randn(2, 3, tokens, 8)


def one_by_one(x: torch.Tensor, fmt: bs.Format) -> torch.Tensor:
    """Each token [2, 3, 1, 8] quantized by itself."""
    return torch.cat([bs.fake_quantize(t.contiguous(), fmt) for t in x.split(1, -2)], -2)


def per_channel(x: torch.Tensor, fmt: bs.Format, group: int) -> torch.Tensor:
    """Each group of a feature's tokens quantized by itself."""
    parts = [bs.fake_quantize(t.mT.contiguous(), fmt).mT for t in x.split(group, -2)]
    return torch.cat(parts, -2)


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize("window", [0, 3, 32])
@pytest.mark.parametrize(
    ("spelling", "per", "group", "chunk"),
    [
        (G, "token", 4, 32),
        ("uint4", "token", 8, 32),
        ("mxfp4", "token", 8, 32),
        (G, "channel", 4, 32),
        ("int3:group12:fp32", "channel", 12, 36),
        ("uint4:group40:fp32:asym", "channel", 40, 40),
    ],
)
def test_what_attention_reads(spelling: str, per: str, group: int, chunk: int, window: int) -> None:
    keys, values = states(130)
    fmt = bs.parse(spelling)
    layer = QuantizedLayer((fmt, fmt), per, window)
    start, held = 0, 0
    for size in (41, *[1] * 40, 9, *[1] * 35, 5):  # a prompt, and tokens after it
        k, v = layer.update(*(x[..., start : start + size, :] for x in (keys, values)))
        start += size
        if held:
            old = keys[..., :held, :]
            old = per_channel(old, fmt, group) if per == "channel" else one_by_one(old, fmt)
            past = one_by_one(values[..., :held, :], fmt)
        else:
            old, past = keys[..., :0, :], values[..., :0, :]
        assert torch.equal(v, torch.cat([past, values[..., held:start, :]], -2))
        assert torch.equal(k, torch.cat([old, keys[..., held:start, :]], -2))
        held += max(start - held - window, 0) // chunk * chunk
        assert layer.keys is not None and layer.keys.shape[-2] == start - held
        assert start - held < max(window, 0) + chunk
        assert layer.get_seq_length() == start
    assert held == (130 - window) // chunk * chunk > 0


@pytest.mark.parametrize("per", ["token", "channel"])
def test_beams_take_their_codes_along(per: str) -> None:
    keys, values = states(80)
    fmt = bs.parse(G)
    layer = QuantizedLayer((fmt, fmt), per, 8)
    layer.reorder_cache(torch.tensor([1, 0]))  # of nothing
    layer.update(keys[..., :79, :], values[..., :79, :])
    last = keys[..., 79:, :], values[..., 79:, :]
    read = [x[..., :79, :] for x in layer.update(*last)]
    layer.reorder_cache(torch.tensor([1, 1]))
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.tensor([0, 3, 1]))
    more = [torch.zeros(3, 3, 1, 8)] * 2
    for before, after in zip(read, layer.update(*more), strict=True):
        assert not torch.equal(before[0], before[1])
        assert all(torch.equal(row[..., :79, :], before[1]) for row in after)


def test_what_is_held() -> None:
    """Codes of all chunks in one tensor, as large as quantize's of all at once."""
    keys, values = states(512)
    fmt = bs.parse("mxfp4")
    whole = bs.quantize(keys, fmt).nbytes + bs.quantize(values, fmt).nbytes
    layer = QuantizedLayer((fmt, fmt), "token", 0)
    for token in range(512):
        layer.update(keys[..., token : token + 1, :], values[..., token : token + 1, :])
    assert layer.nbytes == whole
    assert [q.shape for q in layer.codes if q is not None] == [keys.shape, values.shape]


def test_generate_and_memory() -> None:
    model = decoder("mistral", torch.float32)
    model.config.sliding_window = None
    model.config.use_cache = True
    tokens = torch.arange(40)[None]
    kept = {"max_new_tokens": 12, "do_sample": False, "use_cache": True, "eos_token_id": None}
    plain = model.generate(tokens, **kept)
    wide = QuantizedCache(model.config, G, window=64)
    assert torch.equal(model.generate(tokens, past_key_values=wide, **kept), plain)
    small = QuantizedCache(model.config, G, keys_per="channel", window=0)
    assert model.generate(tokens, past_key_values=small, **kept).shape == plain.shape
    assert small.get_seq_length() == 51 and small.nbytes < 0.65 * wide.nbytes
    assert model.generate(
        tokens, past_key_values=QuantizedCache(model.config, "int8_token", window=0),
        num_beams=2, **kept,
    ).shape == plain.shape  # fmt: skip
    small.reset()
    assert small.get_seq_length() == 0 and small.nbytes == 0
    with pytest.raises(NotImplementedError, match="cropped"):
        small.crop(1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("int8",), "several tokens"),
        (("int4:group4:(e4m3:channel0:fp32)",), "several tokens"),
        (("int8:token:fp32:stochastic",), "rounds stochastically"),
        (("int4:flat32:fp32",), "several tokens"),
        (("int8_token", "int8_token", "channel"), "keys_per='channel' needs"),
        ((G, None, "row"), "keys_per must be one"),
    ],
)
def test_refusals(arguments: tuple[str, ...], says: str) -> None:
    config = decoder("qwen3", torch.float32).config
    values, keys, per = (*arguments, None, "token")[:3] if len(arguments) < 3 else arguments
    with pytest.raises(ValueError, match=says):
        QuantizedCache(config, values, keys, keys_per=per)


@pytest.mark.parametrize(
    ("spelling", "token"),
    [
        ("nvfp4", "nvfp4_token"),
        ("e2m1:group16:e4m3/inv", "e2m1:group16:(e4m3:token:fp32)/inv"),
        ("e2m1:group16:e4m3/four_six", "e2m1:group16:(e4m3:token:fp32)/four_six"),
    ],
)
@pytest.mark.parametrize("per", ["token", "channel"])
def test_an_outer_scale_is_that_of_a_token(spelling: str, token: str, per: str) -> None:
    config = decoder("qwen3", torch.float32).config
    cache = QuantizedCache(config, spelling, keys_per=per)
    assert [str(fmt) for fmt in cache.layers[0].formats] == [str(bs.parse(token))] * 2


@pytest.mark.parametrize(("features", "size"), [(8, 8), (8, 2), (12, 4)])
@pytest.mark.parametrize("per", ["token", "channel"])
def test_rotated_keys_against_a_dense_matrix(per: str, features: int, size: int) -> None:
    """Codes are those of keys times H of +1 and -1, halved as often as Rotate does; what attention
    reads is turned back by its transpose."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 3, 32, features), torch.randn(2, 3, 32, features)
    fmt = bs.parse(G)
    layer = QuantizedLayer((fmt, fmt), per, 0, size)
    layer.update(keys, values)
    read, past = (x[..., :32, :] for x in layer.update(keys[..., :1, :], values[..., :1, :]))
    one = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    matrix = torch.ones(1, 1)
    while len(matrix) < size:  # Sylvester's construction
        matrix = torch.kron(matrix, one)
    power = size.bit_length() - 1
    whole = torch.block_diag(*[matrix] * (features // size))
    turned = (keys.double() @ whole.double() / 2 ** (power // 2)).float()
    own = per_channel(turned, fmt, 4) if per == "channel" else one_by_one(turned, fmt)
    torch.testing.assert_close(read, own @ whole.T / 2 ** (power - power // 2), rtol=0, atol=1e-6)
    assert torch.equal(past, one_by_one(values, fmt))


def test_outliers_of_one_feature_cost_less_when_keys_are_rotated() -> None:
    keys, values = states(64)
    keys[..., 3] *= 30
    lost = []
    for size in (None, 8):
        layer = QuantizedLayer((bs.parse("int4:token:fp32"),) * 2, "token", 0, size)
        layer.update(keys, values)
        read = layer.update(keys[..., :1, :], values[..., :1, :])[0]
        lost.append(float((read[..., :64, :] - keys).square().mean()))
    assert lost[1] < 0.6 * lost[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, each in bs.presets().items() if each.of == "cache"]
)
def test_a_preset_generates_as_what_it_stands_for(name: str) -> None:
    model = decoder("qwen3", torch.float32)
    model.config.use_cache = True
    data = dict(bs.presets()[name].data)
    short = QuantizedCache(model.config, name)
    spelled = QuantizedCache(model.config, **data)
    for one, other in zip(short.layers, spelled.layers, strict=True):
        assert (one.formats, one.keys_per, one.window) == (other.formats, "token", 32)
        assert one.rotated == other.rotated
    kept = {"max_new_tokens": 70, "do_sample": False, "use_cache": True, "eos_token_id": None}
    tokens = [
        model.generate(torch.arange(9)[None], past_key_values=cache, **kept)
        for cache in (short, spelled)
    ]
    assert torch.equal(*tokens)
    assert short.get_seq_length() == 78 and short.layers[0].codes[0] is not None
    assert QuantizedCache(model.config, name, window=0, rotate="hadamard:2").layers[0].rotated == 2


@pytest.mark.parametrize(
    ("values", "more", "says"),
    [
        ("w4a16", {}, "preset 'w4a16' is of weights; those of keys and values are kv8, kv4"),
        (G, {"rotate": "hadamard:3"}, "size must be a power of two"),
        (G, {"rotate": "hadamard:1024"}, "features cannot be rotated 1024 at a time"),
        (G, {"rotate": "smoothquant"}, "rotate must be 'hadamard' or 'hadamard:N'"),
        (G, {"rotate": "nothing"}, "unknown transform 'nothing'"),
    ],
)
def test_rotations_and_presets_that_do_not_fit(values: str, more: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        QuantizedCache(decoder("qwen3", torch.float32).config, values, **more)
