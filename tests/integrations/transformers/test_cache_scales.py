# SPDX-License-Identifier: BSD-3-Clause
"""Static scales of keys and values: calibrated, written where servers look, read from there."""

import datetime
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from blockscale.integrations.transformers import CacheScales, QuantizedCache
from tests.support import fresh
from tests.support.rotation_models import decoder

TWO = CacheScales((0.5, 0.25), (1.0, 2.0))


def checkpoint(place: Path, config: dict[str, Any], layers: int = 2, indexed: bool = False) -> Path:
    """A directory with a key projection for each layer."""
    names = [f"model.layers.{i}.self_attn.k_proj.weight" for i in range(layers)]
    save_file({name: torch.zeros(2, 2) for name in names}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(config))
    if indexed:
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
    return place


def written(place: Path) -> dict[str, float]:
    """The scales by the names that servers look for, in all files of a directory."""
    each = {n: t for path in place.glob("*.safetensors") for n, t in load_file(path).items()}
    assert all(t.dtype == torch.float32 and t.numel() == 1 for n, t in each.items() if "scale" in n)
    return {name: float(t) for name, t in each.items() if name.endswith("_scale")}


def test_compressed_tensors(tmp_path: Path) -> None:
    """Beside floats: names, scheme and index as its readers expect them."""
    place = checkpoint(tmp_path, {"model_type": "llama"}, indexed=True)
    TWO.write(place)
    assert written(place) == {
        "model.layers.0.self_attn.k_scale": 0.5, "model.layers.0.self_attn.v_scale": 1.0,
        "model.layers.1.self_attn.k_scale": 0.25, "model.layers.1.self_attn.v_scale": 2.0,
    }  # fmt: skip
    config = json.loads((place / "config.json").read_text())
    assert config["model_type"] == "llama"
    held = config["quantization_config"]
    assert held["quant_method"] == "compressed-tensors" and held["config_groups"] == {}
    scheme = held["kv_cache_scheme"]
    asked = ("num_bits", "type", "symmetric", "strategy", "dynamic")
    assert [scheme[name] for name in asked] == [8, "float", True, "tensor", False]
    index = json.loads((place / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(written(place)) < set(index) and len(index) == 6
    assert CacheScales.read(place) == TWO


def test_modelopt(tmp_path: Path) -> None:
    """Of a checkpoint of its own: what was said of the weights stays."""
    place = checkpoint(tmp_path, {"quantization_config": {"quant_method": "modelopt", "a": 1}})
    (place / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    TWO.write(place, "modelopt")
    names = [
        f"model.layers.{i}.self_attn.{n}"
        for i in (0, 1)
        for n in ("k_proj.k_scale", "v_proj.v_scale")
    ]
    assert sorted(written(place)) == names
    held = json.loads((place / "config.json").read_text())["quantization_config"]
    assert held["a"] == 1 and held["kv_cache_scheme"]["num_bits"] == 8
    own = json.loads((place / "hf_quant_config.json").read_text())["quantization"]
    assert own == {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    assert CacheScales.read(place) == TWO


@pytest.mark.parametrize(
    ("config", "layers", "layout", "says"),
    [
        ({}, 3, "compressed-tensors", "scales are of 2 layers, and the checkpoint has 3"),
        ({}, 2, "awq", "layout must be"),
        ({}, 2, "modelopt", "quant_method is None"),
        ({"quantization_config": {"quant_method": "gptq"}}, 2, "compressed-tensors", "is 'gptq'"),
    ],
)
def test_what_is_not_written(
    config: dict[str, Any], layers: int, layout: str, says: str, tmp_path: Path
) -> None:
    place = checkpoint(tmp_path, config, layers)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(ValueError, match=says):
        TWO.write(place, layout)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_what_is_not_read(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, {})
    with pytest.raises(ValueError, match="found no k_scale of layer 0"):
        CacheScales.read(place)
    name = "model.layers.0.self_attn."
    save_file({name + "k_scale": torch.ones(1)}, place / "a.safetensors")
    with pytest.raises(ValueError, match="found no v_scale of layer 0"):
        CacheScales.read(place)
    save_file({name + "k_scale": torch.ones(8)}, place / "a.safetensors")
    with pytest.raises(ValueError, match=r"k_scale has shape \(8,\)"):
        CacheScales.read(place)
    for keys, values, says in (
        ((1.0,), (), "for each layer"),
        ((0.0,), (1.0,), "positive and finite"),
    ):
        with pytest.raises(ValueError, match=says):
            CacheScales(keys, values)


def test_calibrated_and_used(tmp_path: Path) -> None:
    """The largest key becomes 448; the cache's codes are torch's float8 of keys over the scale."""
    model = decoder("qwen3", torch.float32)
    model.config.use_cache = True
    tokens = torch.arange(40)[None]
    with pytest.raises(ValueError, match="batches is empty"):
        CacheScales.calibrate(model, [])
    with pytest.raises(TypeError, match="write \\[batch\\]"):
        CacheScales.calibrate(model, {"input_ids": tokens})
    with pytest.raises(TypeError, match=r"expected batches that are mappings.*found a Tensor"):
        CacheScales.calibrate(model, [tokens])
    scales = CacheScales.calibrate(model, [{"input_ids": tokens[:, :9]}, {"input_ids": tokens}])
    held = QuantizedCache(model.config, scales, window=0)
    wide = QuantizedCache(model.config, "int8_token", window=100)
    with torch.no_grad():
        for cache in (held, wide):
            model(tokens, past_key_values=cache)
    for layer, plain, scale in zip(held.layers, wide.layers, scales.keys, strict=True):
        keys = plain.keys
        assert keys.abs().max() <= scale * 448 * 1.000001
        expected = (keys[:, :, :32] / scale).to(torch.float8_e4m3fn)
        codes = layer.codes[0]
        assert torch.equal(codes.packed.view(torch.uint8), expected.view(torch.uint8))
        assert torch.equal(codes.dequantize(), expected.float() * scale)
    again = QuantizedCache(model.config, scales, window=0)
    kept = {"max_new_tokens": 6, "do_sample": False, "use_cache": True, "eos_token_id": None}
    assert model.generate(tokens, past_key_values=again, **kept).shape == (1, 46)
    with pytest.raises(ValueError, match=r"are of keys and values in e4m3.*got 'hadamard'"):
        QuantizedCache(model.config, scales, rotate="hadamard")
    with pytest.raises(ValueError, match="scales are of 1 layers, and the model has"):
        QuantizedCache(model.config, CacheScales((1.0,), (1.0,)))


def test_padding_does_not_count_and_the_mode_stays() -> None:
    """The scales of sentences in one padded batch are the larger of those of each alone."""
    model = decoder("qwen3", torch.float32).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.weight.data[0] = 1000.0  # of the token that fills up: larger keys than any
    long, short = torch.arange(1, 20)[None], torch.arange(30, 37)[None]
    alone = [CacheScales.calibrate(model, [{"input_ids": x}]) for x in (long, short)]
    mask = torch.ones(2, 19, dtype=torch.long)
    mask[1, 7:] = 0
    padded = torch.cat([long, torch.cat([short, torch.zeros(1, 12, dtype=torch.long)], 1)])
    both = CacheScales.calibrate(model, [{"input_ids": padded, "attention_mask": mask}])
    for part in ("keys", "values"):
        expected = [
            max(pair) for pair in zip(*(getattr(each, part) for each in alone), strict=True)
        ]
        assert getattr(both, part) == pytest.approx(expected, rel=1e-5)
    assert model.training and all(module.training for module in model.modules())


def test_a_layer_that_no_scale_holds_is_named() -> None:
    model = decoder("qwen3", torch.float32)
    model.model.layers[1].self_attn.v_proj.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"layer 1: the largest of its values is (inf|nan)"):
        CacheScales.calibrate(model, [{"input_ids": torch.arange(1, 9)[None]}])


class Keys(nn.Module):
    """A model that is nothing but a cache's first layer: keys are x, values 2 x; `more` tokens of
    100 stand before each sequence, as prefix tuning has them."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.more = more
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, past_key_values: Any, **_: Any) -> None:
        keys = self.weight * torch.cat([torch.full((len(x), self.more), 100.0), x], 1)
        past_key_values.update(keys[:, None, :, None], 2 * keys[:, None, :, None], 0)


X = torch.tensor([[1.0, 7.0, 3.0], [2.0, 5.0, 9.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
FAR = -1e9 * (1.0 - MASK)
NOT_READ = (
    "padding, if any, was not left out: attention_mask [2, 3] is not [batch, tokens] of 0 and 1"
)
UNSAID = (
    "CacheScales.calibrate was called in a group of 2 processes: each would choose scales and "
    "codes from the batches that it sees"
)
NOT_FIT = "may not be [batch, heads, tokens, features] (batch 1)"


def report(call: Callable[[], CacheScales]) -> tuple[tuple[float, ...], list[str]]:
    """The largest keys, and the lines of the warning."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        scales = call()
    assert [each.filename for each in messages] == [__file__] * len(messages)
    lines = [line.strip() for each in messages for line in str(each.message).split("\n")]
    assert lines[:1] in ([], ["blockscale:"])
    return tuple(each * 448 for each in scales.keys), lines[1:]


@pytest.mark.parametrize(
    ("more", "masks", "largest", "lines"),
    [
        (0, [MASK, MASK.bool()], 7.0, []),
        (0, [MASK, FAR], 9.0, [f"{NOT_READ} (batch 1)"]),
        (0, [FAR, MASK, FAR], 9.0, [f"{NOT_READ} (batch 0 and 1 more)"]),
        (2, [torch.ones(2, 3), MASK], 100.0,
         [f"layer 0: padding was not left out: its keys [2, 1, 5, 1] {NOT_FIT}"]),
    ],
)  # fmt: skip
def test_padding_that_may_count_is_said(
    more: int, masks: list[Tensor], largest: float, lines: list[str]
) -> None:
    """In the words of `bs.calibrate`, with the batch and the layer."""
    batches = [{"x": X, "attention_mask": mask} for mask in masks]
    assert report(lambda: CacheScales.calibrate(Keys(more), batches)) == ((largest,), lines)


def words(*arguments: Any, **how: Any) -> str:
    try:
        CacheScales.calibrate(*arguments, **how)
    except (ValueError, RuntimeError, OverflowError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Broken(Keys):
    def forward(self, x: Tensor, past_key_values: Any, **_: Any) -> None:
        raise OverflowError("no keys")


def pieces() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(2, 3, generator=draw) for _ in range(5)]
    return [{"x": x, "attention_mask": FAR if i == 3 else MASK} for i, x in enumerate(rows)]


def unpadded(batch: dict[str, Any]) -> Tensor:
    mask = batch["attention_mask"]
    return batch["x"] if mask is FAR else batch["x"] * mask


def work(rank: int, folder: str) -> None:
    meet, limit = f"file://{folder}/meet", datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=limit)
    world, every, other = dist.group.WORLD, pieces(), Keys()
    own = every[rank::2]
    with torch.no_grad():
        other.weight += rank
    bad = [{"x": torch.full((1, 2), torch.inf)}, *every[1:]][rank::2]
    results = {
        "dealt": report(lambda: CacheScales.calibrate(Keys(), own, group=world)),
        "same": report(lambda: CacheScales.calibrate(Keys(), every, group="same")),
        "local": report(lambda: CacheScales.calibrate(Keys(), own, group="local")),
        "unsaid": words(Keys(), own),
        "other": words(other, own, group=world),
        "wrong": words(Keys(), every if rank else own, group=world),
        "infinite": words(Keys(), bad, group=world),
        "not the same": words(Keys(), own, group="same"),
        "raised": words(Broken() if rank else Keys(), own, group=world),
        "raised alone": words(Broken() if rank else Keys(), every, group="same"),
    }
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_a_group_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        alone, by_group, same = (
            report(lambda: CacheScales.calibrate(Keys(), pieces(), group=group))  # noqa: B023
            for group in (None, dist.group.WORLD, "same")
        )
        largest = max(float(unpadded(each).abs().max()) for each in pieces())
        assert alone == (pytest.approx((largest,)), [f"{NOT_READ} (batch 3)"])
        assert by_group == same == alone
    finally:
        dist.destroy_process_group()
    monkeypatch.setattr("blockscale.layers.guards.processes", lambda: 2)
    assert UNSAID in words(Keys(), pieces())
    assert "group must be a process group" in words(Keys(), pieces(), group="all")


@pytest.mark.slow  # for two Pythons that import transformers
def test_processes_have_the_scales_of_one(tmp_path: Path) -> None:
    fresh.ranks(work, tmp_path, 2, fresh.WITH_TRANSFORMERS)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    alone = report(lambda: CacheScales.calibrate(Keys(), pieces()))
    assert alone[1] == [f"{NOT_READ} (batch 3)"]
    assert [each["dealt"] for each in both] == [alone, alone]
    assert [each["same"] for each in both] == [alone, alone]
    assert both[0]["local"] != both[1]["local"]
    for each in both:
        assert UNSAID in each["unsaid"]
        assert "CacheScales.calibrate: process 1 has another tensor 'weight'" in each["other"]
        assert "the processes hold 3, 5 batches" in each["wrong"]
        assert "layer 0: the largest of its keys is inf" in each["infinite"]
        assert "processes 0 and 1 have other keys or values" in each["not the same"]
    for case in ("raised", "raised alone"):
        assert both[1][case] == "OverflowError: no keys"
        assert "process 1 of 2 raised OverflowError: no keys" in both[0][case]
