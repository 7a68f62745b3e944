"""The adaptive observer: what it holds back, what it measures, and what it says."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.calibrate.observers.adaptive import CAPACITY, EVERY


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeing(spec, fmt, *batches):
    observer = bs.observers.make(spec, fmt)
    for batch in batches:
        observer.observe(batch)
    return observer


def test_it_takes_the_one_with_the_least_measured_error():
    x = torch.cat([draw(4000), torch.tensor([60.0])])
    observer = seeing("adaptive:min_max+percentile:99.9+mse", "int4:tensor:fp32", x)
    held = x[1::EVERY]
    rest = x[np.arange(len(x)) % EVERY != 1]
    assert observer.held.tolist() == held.tolist()
    assert list(observer.errors) == ["min_max", "percentile:99.9", "mse"]
    for spec, error in observer.errors.items():
        scale = seeing(spec, "int4:tensor:fp32", rest[None]).qparams().scale  # never saw `held`
        y = bs.fake_quantize(held[None], "int4:tensor:fp32", scale)
        expected = (y.double() - held).square().mean()
        assert error == pytest.approx(expected.item(), rel=1e-12)
    assert observer.won == min(observer.errors, key=observer.errors.get) != "min_max"
    gain = 10 * np.log10(sorted(observer.errors.values())[1] / min(observer.errors.values()))
    assert f"{observer.won} won, its error {gain:.2f} dB below that of" in observer.describe()


def test_the_winner_has_seen_everything():
    x = draw(3000)
    x[1] = 1e3  # held back, being number 1
    observer = seeing("adaptive:min_max+moving_average:1", "int8", x)
    assert observer.won == "min_max"  # equal errors: the one named first
    assert observer.range().high == 1e3
    assert observer.range().high == 1e3  # asking changes nothing


def test_what_leaves_the_sample_is_shown_after_all():
    x = draw(4, 2**19 // 4)
    observer = seeing("adaptive", "int8", *x, *x, *x)
    children = list(observer.children())
    assert observer.held.numel() == CAPACITY
    assert all(int(child.samples) == 3 * x.numel() - CAPACITY for child in children)
    late = (observer.held[:, None] == x[3, :2000]).any(1).sum()
    assert late > 0  # the sample is not just the beginning


def test_it_is_the_same_in_every_run_whatever_the_batches():
    x = draw(3000)
    a, b = seeing("adaptive", "int8", x), seeing("adaptive", "int8", x[:7], x[7:1000], x[1000:])
    assert a.errors == b.errors
    assert a.won == b.won


def test_rows_are_held_back_for_channels():
    x = draw(100, 6)
    observer = seeing("adaptive", "int8:channel-1:fp32", x[:30], x[30:])
    assert torch.equal(observer.held.view(-1, 6), x[1::EVERY])
    assert observer.range().high.shape == (1, 6)


def test_nan_does_not_enter_the_errors():
    x = draw(1000)
    x[1] = torch.nan
    x[5] = torch.inf
    observer = seeing("adaptive", "int8", x)
    assert all(np.isfinite(error) for error in observer.errors.values())
    assert observer.describe().startswith("1000 elements, 1 NaN, 1 infinite; ")


def test_nothing_held_back_is_an_error():
    observer = seeing("adaptive", "int8", torch.tensor([3.0]))
    with pytest.raises(ValueError, match=r"cannot choose: 1 elements, .* no finite one was held"):
        observer.range()
    assert observer.describe().endswith("nothing held back")


def test_means_have_their_own():
    observer = seeing("adaptive", "ternary:tensor:fp32", draw(1000))
    assert list(observer.errors) == ["mean", "mse"]


def test_merging_keeps_a_sample_of_both():
    a, b = seeing("adaptive", "int8", draw(1000)), seeing("adaptive", "int8", 5 * draw(500, seed=1))
    a.merge_(b)
    assert int(a.samples) == int(a.rows) == 1500
    assert a.held.numel() == 59 + 30
    assert a.range().high > 10
    assert sum(int(child.samples) for child in a.children()) == 4 * (1500 - 89)


def test_moving_it_moves_the_observers_inside():
    observer = seeing("adaptive", "int8", draw(100)).to("meta")
    assert {buffer.device.type for buffer in observer.buffers()} == {"meta"}


def test_a_full_sample_does_not_depend_on_the_batches_either():
    x, spec = draw(400_000), "adaptive:min_max+moving_average"
    whole = seeing(spec, "int8:tensor:fp32", x)
    parts = seeing(spec, "int8:tensor:fp32", x[:150_001], x[150_001:])
    assert whole.held.numel() == CAPACITY
    assert torch.equal(whole.held, parts.held)


def test_merging_past_the_bound_shows_what_leaves():
    a, b = (seeing("adaptive:min_max+mse", "int8:tensor:fp32", draw(200_000)) for _ in range(2))
    assert a.merge_(b).held.numel() == CAPACITY
    assert [int(child.samples) for child in a.children()] == [400_000 - CAPACITY] * 2
