# SPDX-License-Identifier: BSD-3-Clause
"""Quantized bags give the bits that torch gives for the dequantized table."""

import copy

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.kinds import QEmbeddingBag

ROWS, SIZE = 23, 20
FLAT = torch.tensor([3, 0, 22, 3, 7, 7, 1, 5, 2])
SPLIT = torch.tensor([0, 2, 2, 7])  # the second bag is empty
CALLS = {
    "split": (FLAT, SPLIT),
    "even": (FLAT.reshape(3, 3), None),
    "short indices": (FLAT.int(), SPLIT.int()),
    "many": (torch.arange(60) % ROWS, torch.tensor([0, 11, 11])),
    "none": (FLAT[:0], torch.tensor([0, 0])),
    "of padding alone": (torch.tensor([3, 3, 1]), torch.tensor([0, 2])),
}


def both(
    fmt: str = "int4:group8:fp32", dtype=torch.float32, **options
) -> tuple[nn.Module, nn.Module]:
    """A quantized bag, and torch's with the same values."""
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(ROWS, SIZE, dtype=dtype, **options)
    model = nn.Sequential(copy.deepcopy(bag))
    bs.quantize_(model, fmt, strict=True)
    bag.weight.data = model[0].dequantize_weight()
    return model[0], bag


@pytest.mark.pairs
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("call", CALLS)
def test_bags(call: str, mode: str, padding: int | None) -> None:
    layer, twin = both(mode=mode, padding_idx=padding)
    assert isinstance(layer, QEmbeddingBag)
    assert torch.equal(layer(*CALLS[call]), twin(*CALLS[call]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "int8_channel", "int8:tensor:fp32:asym"])
def test_formats_and_dtypes(fmt: str, dtype: torch.dtype) -> None:
    layer, twin = both(fmt, dtype, mode="sum")
    y = layer(FLAT, SPLIT)
    assert y.dtype == dtype
    assert torch.equal(y, twin(FLAT, SPLIT))


@pytest.mark.parametrize("padding", [None, 3])
def test_weights_of_rows_and_the_last_offset(padding: int | None) -> None:
    layer, twin = both(mode="sum", include_last_offset=True, padding_idx=padding)
    weights = torch.linspace(-1, 2, len(FLAT))
    offsets = torch.tensor([0, 4, 4, 9])
    y = layer(FLAT, offsets, weights)
    assert y.shape == (3, SIZE)
    assert torch.equal(y, twin(FLAT, offsets, weights))


def test_misuse_is_torchs_error() -> None:
    layer, twin = both(mode="mean")
    for call in [(FLAT,), (FLAT.reshape(3, 3), SPLIT), (FLAT, SPLIT, torch.ones(9))]:
        for each in (layer, twin):
            with pytest.raises((ValueError, NotImplementedError)):
                each(*call)
    with pytest.raises((IndexError, RuntimeError)):
        layer(torch.tensor([ROWS]), torch.tensor([0]))


def test_a_table_that_changes_at_each_call_is_refused() -> None:
    model = nn.Sequential(nn.EmbeddingBag(9, 8, max_norm=1.0))
    with pytest.raises(bs.SkippedError, match="max_norm"):
        bs.quantize_(model, "int8", strict=True)


def test_its_output_can_have_a_format_and_its_input_none() -> None:
    model = nn.Sequential(nn.EmbeddingBag(ROWS, 32, mode="sum"))
    plain = copy.deepcopy(model)
    ledger = bs.quantize_(model, bs.Recipe("int8", input="int8", output="mxfp4"))
    assert ledger["0"].reason == "its input is indices, which have no format"
    plain[0].weight.data = model[0].dequantize_weight()
    assert torch.equal(
        model(FLAT.reshape(3, 3)), bs.fake_quantize(plain(FLAT.reshape(3, 3)), "mxfp4")
    )


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, SIZE, mode="mean", padding_idx=3)
        self.fc = nn.Linear(SIZE, 4)

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        return self.fc(self.bag(indices, offsets))


@pytest.mark.slow
def test_it_is_saved_loaded_compiled_and_exported(tmp_path) -> None:
    model = Words().eval()
    bs.quantize_(model, "int8_channel", strict=True)
    y = model(FLAT, SPLIT)
    bs.save(model, tmp_path / "words.safetensors")
    again = bs.load(Words().eval(), tmp_path / "words.safetensors")
    assert isinstance(again.bag, QEmbeddingBag)
    assert torch.equal(again(FLAT, SPLIT), y)
    program = torch.export.export(model, (FLAT, SPLIT)).module()
    assert torch.equal(program(FLAT, SPLIT), y)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(FLAT, SPLIT), y)
