# SPDX-License-Identifier: BSD-3-Clause
"""The adaptive observer: what it measures, that it does not lose to its own, what it says."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.histogram import CAPACITY
from blockscale.calibration.observers.adaptive import MEANS, RANGES
from tests.calibration.observers.seen import draw, same, seeing

FORMATS = (
    "int8:tensor:fp32",
    "int4:tensor:fp32",
    "uint4:tensor:fp32:asym",
    "int8:tensor:pow2/nearest",
    "int8:channel-1:fp32",
    "e4m3:tensor:fp32",
)


def outliers(count: int, size: float, n: int = 2**16, seed: int = 0) -> Tensor:
    """Normal numbers and a few far beyond them, anywhere among them."""
    x = torch.cat([draw(n, seed=seed), torch.full((count,), size)])
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]


DATA = {
    "one 60 among 65,536": outliers(1, 60.0),
    "one -60 at the start": torch.cat([torch.tensor([-60.0]), draw(2**16)]),
    "the same where all are kept": outliers(1, 60.0, 4000),
    "one 1e4": outliers(1, 1e4, 100_000),
    "seven 25s": outliers(7, 25.0, 200_000, seed=1),
    "heavy tails": draw(150_000) ** 5,
    "no outlier": draw(100_000),
    "one-sided": outliers(3, 40.0, 90_000).relu(),
    "few codes": torch.cat([draw(80_000).round(), torch.tensor([31.0])]),
}


def error(x: Tensor, observer: bs.observers.Observer) -> float:
    """Measured with the public functions alone."""
    scale, _, zero_point = observer.qparams()[:3]
    y = bs.fake_quantize(x, str(observer.format), scale, zero_point)
    return float((y.double() - x).square().mean())


@pytest.mark.some(64)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("data", DATA)
def test_it_does_not_lose_to_its_own(data: str, fmt: str) -> None:
    """By more than half a bin on either side allows; and in fact hardly at all."""
    x = DATA[data][: len(DATA[data]) // 2 * 2].view(-1, 2)
    best = min(error(x, seeing(spec, fmt, x)) for spec in RANGES)
    found = error(x, seeing("adaptive", fmt, x[:100], x[100:]))
    if x.numel() <= CAPACITY:
        assert found == best
        return
    half_a_bin = x.double().square().mean().sqrt() * 2.0**-9 + x.abs().max() * 2.0**-14
    assert found**0.5 <= best**0.5 + 2 * half_a_bin
    assert found <= 1.01 * best


def test_the_errors_are_those_of_everything() -> None:
    x = torch.cat([draw(4000), torch.tensor([60.0])])[:, None]
    specs = ["min_max", "percentile:99.9", "mse"]
    observer = seeing("adaptive:" + "+".join(specs), "int4:tensor:fp32", x[:7], x[7:])
    assert list(observer.errors) == specs
    for spec, found in observer.errors.items():
        assert found == pytest.approx(error(x, seeing(spec, "int4:tensor:fp32", x)), rel=1e-12)
    assert observer.won == min(observer.errors, key=lambda spec: observer.errors[spec]) == "mse"
    first, second = sorted(observer.errors.values())[:2]
    gain = 10 * torch.tensor(second / first).log10().item()
    assert f"mse won, its error {gain:.2f} dB below that of" in observer.describe()


def test_the_winner_has_seen_everything() -> None:
    x = draw(3000)
    x[1] = 1e3
    observer = seeing("adaptive:min_max+moving_average:1", "int8", x)
    assert observer.won == "min_max"  # equal errors: the one named first
    assert observer.range().high == 1e3
    assert all(int(child.samples) == 3000 for child in observer.children())


def test_one_of_them_may_keep_the_values() -> None:
    names = [name for name, _ in bs.observers.make("adaptive", "int8").named_children()]
    assert names == ["0", "1", "2", "3"]  # "percentile" has them
    made = bs.observers.make("adaptive:min_max+mse", "int8")
    assert [name for name, _ in made.named_children()] == ["0", "1", "values"]


def test_nan_does_not_enter_the_errors() -> None:
    x = draw(1000)
    x[1], x[5] = torch.nan, torch.inf
    observer = seeing("adaptive", "int8", x)
    clean = seeing("adaptive", "int8", x[x.isfinite()])
    assert observer.errors == clean.errors
    assert observer.describe().startswith("1000 elements, 1 NaN, 1 infinite; ")


def test_nothing_seen_is_an_error() -> None:
    observer = seeing("adaptive", "int8", torch.tensor([torch.nan]))
    with pytest.raises(ValueError, match=r"'adaptive' \(.*\) saw no data: 1 elements, 1 NaN"):
        _ = observer.errors
    assert observer.describe() == "1 elements, 1 NaN, 0 infinite"
    assert seeing("adaptive", "int8", torch.tensor([3.0])).range().high == 3


def test_means_have_their_own() -> None:
    observer = seeing("adaptive", "ternary:tensor:fp32", draw(1000))
    assert tuple(observer.errors) == MEANS


@pytest.mark.slow
def test_blocks_whose_scales_have_one_shape() -> None:
    x = draw(8, 64)
    observer = seeing("adaptive", "mxfp4", x, x)
    best = min(error(x, seeing(spec, "mxfp4", x, x)) for spec in RANGES)
    assert error(x, observer) == best


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint4:channel-1:fp32:asym"])
def test_merged_it_is_as_if_one_had_seen_everything(fmt: str) -> None:
    """Where its observers merge exactly, as its usual ones do."""
    x = draw(CAPACITY // 2 + 64, 2) ** 3
    for rows in (len(x), 512):  # more than is kept as it is, and less
        a, b = seeing("adaptive", fmt, x[: rows // 3]), seeing("adaptive", fmt, x[rows // 3 : rows])
        whole = seeing("adaptive", fmt, x[:rows])
        assert a.merge_(b).errors == pytest.approx(whole.errors, rel=1e-12)
        assert same(a, whole)


def test_moving_it_moves_the_observers_inside() -> None:
    observer = seeing("adaptive:min_max+mse", "int8", draw(100)).to("meta")
    assert {buffer.device.type for buffer in observer.buffers()} == {"meta"}


def test_a_state_of_release_0_1_0() -> None:
    """It held every 17th element back from its observers, which are shown them now."""
    x = draw(3000)
    kept = torch.ones(3000, dtype=torch.bool)
    kept[1::17] = False
    old = dict(seeing("adaptive", "int8:tensor:fp32", x[kept]).state_dict())
    rows = torch.tensor(3000)
    old |= {"rows": rows, "samples": rows, "held": x[~kept], "priority": torch.rand(177)}
    old |= {"low": x.min().view(1, 1), "high": x.max().view(1, 1)}
    fresh, whole = bs.observers.make("adaptive", "int8:tensor:fp32"), seeing("adaptive", "int8", x)
    fresh.load_state_dict(old)
    assert fresh.errors == pytest.approx(whole.errors, rel=1e-12)
    assert fresh.range() == whole.range()
    assert len(old) == len(set(whole.state_dict()) | {"rows", "held", "priority"})
