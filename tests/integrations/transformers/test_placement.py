# SPDX-License-Identifier: BSD-3-Clause
"""Device maps with the disk in them, and parameters that are fused of quantized ones."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

import blockscale as bs
from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming_view import piece_values
from blockscale.integrations.transformers import BlockscaleConfig
from blockscale.integrations.transformers.placement import Fuse, loading_places, only
from blockscale.ops.tensor import from_parts
from tests.support.layers_offload import X, held_bytes, llama
from tests.support.transformers_models import same_bits


@pytest.mark.parametrize("places", [{"": "cpu"}, {"": "meta"}, {"a": 0, "b": 1}, {"a": "cuda:0"}])
def test_other_places_stay(places: dict[str, Any]) -> None:
    assert loading_places(places) == places


def test_the_disk_is_read_by_the_cpu() -> None:
    assert loading_places({"a": 0, "b": "disk"}) == {"a": 0, "b": "cpu"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, and its quantized directory."""
    folder = tmp_path_factory.mktemp("placement")
    llama().save_pretrained(folder / "float")
    bs.quantize_directory(folder / "float", folder / "quantized", "mxfp4")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("source", ["float", "quantized"])
@pytest.mark.parametrize("places", ["auto", {"": "disk"}], ids=str)
def test_a_model_larger_than_the_limit(
    folders: Path, source: str, places: Any, tmp_path: Path
) -> None:
    """It is on disk in codes, computes the same bits, and saves them; the files go with it."""
    options = {} if source == "quantized" else {"quantization_config": BlockscaleConfig("mxfp4")}
    loader: Any = hf.LlamaForCausalLM.from_pretrained
    whole = loader(folders / source, **options)
    limit = {"cpu": int(held_bytes(whole) * 0.75)} if places == "auto" else None
    with pytest.warns(UserWarning, match=r"kept on disk in .*blockscale-offload-") as told:
        model = loader(folders / source, device_map=places, max_memory=limit, **options)
    [words] = [str(each.message) for each in told if "blockscale-offload-" in str(each.message)]
    folder = Path(words.partition("kept on disk in ")[2].partition(" while ")[0])
    assert folder.is_dir() and held_bytes(model) <= 0.75 * held_bytes(whole)
    assert "disk" in model.hf_device_map.values()
    with torch.no_grad():
        assert torch.equal(model(X).logits, whole(X).logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # transformers says that it reads all of it
        model.save_pretrained(tmp_path / "again")
    same_bits(loader(tmp_path / "again"), whole)
    del model
    gc.collect()
    assert not folder.exists()


# Codes of parts become the codes of what is fused of them, where blocks allow it.

PATTERNS = ["e.*.gate", "e.*.up"]


class Taker:
    def __init__(self) -> None:
        self.taken: dict[str, Any] = {}
        self.floats: list[str] = []

    def take_fused(self, name: str, info: TensorInfo, parts: dict[str, Any]) -> torch.Tensor:
        self.taken[name] = info, parts
        return torch.zeros(())

    def note_dequantized(self, name: str) -> None:
        self.floats.append(name)


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(3, 16, 64))
        self.config = type("Config", (), {"dtype": torch.float32})


def fused(fmt: str, operations: list[Any], of_up: str = "") -> tuple[Taker, Any, torch.Tensor]:
    """of_up: the format of the second halves, where it is another."""
    formats = {"e.*.gate": fmt, "e.*.up": of_up or fmt}
    torch.manual_seed(0)
    floats = {pattern: [torch.randn(8, 64) for _ in range(3)] for pattern in PATTERNS}
    found: dict[str, list[torch.Tensor]] = {}
    for pattern, values in floats.items():
        for value in values:
            q = bs.quantize(value, formats[pattern])
            parts = {"codes": q.packed} | {
                part: each for part, each in q.qparams._asdict().items() if each is not None
            }
            for part, each in parts.items():
                found.setdefault(f"{pattern}.{part}", []).append(each)
    whole = torch.stack([torch.cat(each) for each in zip(*floats.values(), strict=True)])
    infos = {each: TensorInfo(str(bs.parse(formats[each])), (8, 64)) for each in PATTERNS}
    taker = Taker()
    given = Fuse(taker, infos, operations).convert(
        found, target_patterns=["fused"], full_layer_name="fused", model=Experts()
    )
    return taker, given, whole


MERGE = [MergeModulelist(0), Concatenate(1)]


@pytest.mark.parametrize("fmt", ["mxfp4", "int4", "int8:group16:fp32", "mxfp8"])
def test_codes_are_those_of_the_whole(fmt: str) -> None:
    taker, _, whole = fused(fmt, MERGE)
    info, parts = taker.taken["fused"]
    q = bs.quantize(whole, fmt)
    assert info.shape == (3, 16, 64)
    assert torch.equal(parts["codes"], q.packed)
    assert torch.equal(parts["scale"], q.qparams.scale)
    assert not taker.floats


def of_halves(whole: torch.Tensor, *formats: str) -> torch.Tensor:
    """The values of experts of which each half is quantized by itself."""
    return torch.stack([
        torch.cat([bs.quantize(half, fmt).dequantize()
                   for half, fmt in zip(each.chunk(2), formats, strict=True)])
        for each in whole
    ])  # fmt: skip


@pytest.mark.parametrize("fmt", ["nvfp4", "int8:tensor:fp32", "e4m3:tile4x32:fp32"])
def test_halves_keep_their_own_scales(fmt: str) -> None:
    """Each half of each expert was quantized alone, as servers' files have them."""
    taker, _, whole = fused(fmt, MERGE)
    info, parts = taker.taken["fused"]
    q = from_parts(bs.parse(info.format), 64, parts)
    assert not taker.floats and tuple(q.shape) == info.shape == (3, 16, 64)
    assert torch.equal(q.dequantize(), of_halves(whole, fmt, fmt))


@pytest.mark.parametrize(
    ("fmt", "operations", "of_up"),
    [("mxfp4", [*MERGE, Transpose(1, 2)], ""), ("mxfp4", MERGE, "mxfp8")],
    ids=["turned", "two formats"],
)
def test_others_are_dequantized(fmt: str, operations: list[Any], of_up: str) -> None:
    taker, given, whole = fused(fmt, operations, of_up)
    assert taker.floats == ["fused"]
    expected = of_halves(whole, fmt, of_up or fmt)
    expected = expected.transpose(1, 2) if len(operations) == 3 else expected
    assert torch.equal(given["fused"], expected)


def test_only_one_way() -> None:
    a, b = TensorInfo("int8", (2, 4)), TensorInfo("int4", (2, 4))
    assert only("x", [("e.0", a), ("e.1", a)]) is a
    with pytest.raises(bs.FileError, match=r"e\.0 and e\.1 become one tensor"):
        only("x", [("e.0", a), ("e.1", b)])


def test_a_piece_has_the_float_shape() -> None:
    q = bs.quantize(torch.randn(8, 64).t().contiguous().t(), "mxfp4")
    info = TensorInfo(str(q.format), (64, 8), layout="transposed")
    parts = {"codes": q.packed, "scale": q.qparams.scale}
    assert torch.equal(piece_values(parts, info), q.dequantize().t())
