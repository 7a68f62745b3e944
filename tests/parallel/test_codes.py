# SPDX-License-Identifier: BSD-3-Clause
"""Real processes (gloo): means of gradients and quantized tensors that are sent as codes."""

from typing import Any

import pytest
import torch

import blockscale as bs
from tests.parallel.exchanging import (
    COLUMNS,
    FORMATS,
    RANKS,
    ROWS,
    STOCHASTIC,
    decibels,
    gradient,
    work,
)
from tests.support import fresh

Found = list[dict[str, Any]]

# bytes to those of bfloat16, and decibels (docs/scale.md)
TABLE = {
    "int8:group64:fp32": (0.531, 41.4), "mxint8": (0.516, 39.0), "mxfp8": (0.516, 27.5),
    "mxfp6": (0.391, 22.3), "nvfp4": (0.281, 17.6), "int4:group32:fp32": (0.313, 17.4),
    "mxfp4": (0.266, 15.9),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each process found, from one spawn."""
    folder = tmp_path_factory.mktemp("collectives")
    fresh.ranks(work, folder, RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.fixture(scope="module")
def wanted() -> torch.Tensor:
    return sum(gradient(rank).double() for rank in range(RANKS)) / RANKS  # type: ignore[return-value]


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_mean_of_codes(found: Found, wanted: torch.Tensor, fmt: str) -> None:
    """The same bits in every process; bytes and noise as the docs have them."""
    mean, sent = found[0][fmt]
    assert all(torch.equal(each[fmt][0], mean) for each in found)
    ring = 2 * (RANKS - 1) / RANKS * ROWS * COLUMNS * 2  # what a rank sends of bfloat16
    ratio, quality = TABLE[fmt]
    assert abs(sent / ring - ratio) < 0.002
    assert abs(decibels(mean, wanted) - quality) < 0.4


def test_a_mean_is_what_the_steps_say(found: Found) -> None:
    """Slices quantized by each, added in float32 in the order of the processes, and once more."""
    width = -(-ROWS * COLUMNS // RANKS)
    padded = [torch.zeros(RANKS * width) for _ in range(RANKS)]
    for rank in range(RANKS):
        padded[rank][: ROWS * COLUMNS] = gradient(rank)
    means = []
    for part in range(RANKS):
        total = torch.zeros(1, width)
        for x in padded:
            piece = x[part * width : (part + 1) * width][None]
            total = total + bs.quantize(piece, "mxint8").dequantize()
        means.append(bs.quantize(total / RANKS, "mxint8").dequantize()[0])
    assert torch.equal(found[1]["mxint8"][0], torch.cat(means)[: ROWS * COLUMNS])


def test_stochastic_rounding_is_of_each_process(found: Found, wanted: torch.Tensor) -> None:
    mean = found[0][STOCHASTIC][0]
    assert all(torch.equal(each[STOCHASTIC][0], mean) for each in found)
    assert not torch.equal(mean, found[0]["mxint8"][0])
    assert decibels(mean, wanted) > 34


def test_bfloat16_gradients_stay_that(found: Found, wanted: torch.Tensor) -> None:
    assert found[0]["half"].dtype == torch.bfloat16
    assert decibels(found[0]["half"], wanted) > 36


def test_error_feedback_loses_nothing_in_the_long_run(found: Found, wanted: torch.Tensor) -> None:
    plain, fed = (decibels(found[0][f"feedback {f}"], 16 * wanted) for f in (False, True))
    assert fed > plain + 15
    for each in found:
        assert torch.equal(each["feedback True"], found[0]["feedback True"])
        assert torch.equal(each["rebuilt"], each["new"])  # nothing is left of other parameters


def test_ddp_trains_with_it(found: Found) -> None:
    for each in found[:2]:
        pairs = zip(each["trained mxint8"], found[0]["trained mxint8"], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    for a, b in zip(found[0]["trained mxint8"], found[0]["trained "], strict=True):
        assert 0 < float((a - b).abs().max()) < 2e-3


@pytest.mark.parametrize("kind", ["alike", "uneven"])
@pytest.mark.parametrize("fmt", ["nvfp4", "int4:group32:fp32:asym", "int8_channel", "mxfp6"])
def test_quantized_tensors_are_gathered(found: Found, fmt: str, kind: str) -> None:
    for each in found:
        assert len(each[f"{fmt} {kind}"]) == RANKS
        for rank, (packed, parts, values) in enumerate(each[f"{fmt} {kind}"]):
            rows = 4 if kind == "alike" else 3 + rank
            draw = torch.Generator().manual_seed(rank)
            q = bs.quantize(torch.randn(rows, 96, generator=draw), fmt)
            assert torch.equal(packed, q.packed) and torch.equal(values, q.dequantize())
            for a, b in zip(parts, q.qparams, strict=True):
                assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))


def test_other_formats_are_refused(found: Found) -> None:
    for each in found:
        assert "process 2 holds e2m1:group32:e8m0" in each["formats"]
    with pytest.raises(TypeError, match=r"expected a QTensor \(bs\.quantize\), found Tensor"):
        bs.parallel.all_gather(torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bs\.parallel\.hook: .*no gradient can be quantized"):
        bs.parallel.hook("e2m1:group16:e4m3/given")


def test_messages_come_in_the_order_of_the_processes(found: Found) -> None:
    for rank, each in enumerate(found):
        assert [x.tolist() for x in each["gathered"]] == [list(range(n)) for n in range(RANKS)]
        assert [x.tolist() for x in each["swapped"]] == [[f] * (f + 2 * rank) for f in range(RANKS)]
