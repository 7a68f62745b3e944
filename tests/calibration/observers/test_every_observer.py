# SPDX-License-Identifier: BSD-3-Clause
"""What every observer does, whatever it chooses: a new file in the folder is tested by itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.core import reference
from tests.calibration.observers.seen import (
    BLOCKS,
    FORMATS,
    MORE,
    RANGE_FORMATS,
    draw,
    merges_exactly,
    pairs,
    same,
    seeing,
    served,
)

SPECS = (*bs.observers.names(), *MORE)
STATIC = ("int8:tensor:fp32", "uint4:channel-1:fp32:asym", "binary:tensor:fp32")
# these merge inexactly, but leave out what is not finite
INEXACT = ("mean", "moving_average", "adaptive")
SEES_ONLY_FINITE = [s for s in SPECS if merges_exactly(s) or s in INEXACT]
EXACT = [spec for spec in SPECS if merges_exactly(spec)]


@pytest.mark.parametrize("name", bs.observers.names())
def test_it_serves_some_format(name: str) -> None:
    assert name in {spec for spec, _ in pairs(*FORMATS)}


@pytest.mark.parametrize("name", bs.observers.names())
def test_calibrate_takes_it(name: str) -> None:
    torch.manual_seed(0)
    model, batches = torch.nn.Sequential(torch.nn.Linear(8, 8)), [draw(40, 8), draw(40, 8, seed=1)]
    fmt = served(name, "int8:tensor:fp32", "binary:tensor:fp32")
    recipe = bs.Recipe("int8_channel", input=fmt)
    ledger = bs.calibrate(model, batches, recipe, name, progress=False)
    assert f"static input by {name}" in ledger["0"].details
    observer = seeing(name, fmt, *batches)
    expected = observer.qparams()
    for mine, theirs in zip(model[0].input.for_rank(2), expected, strict=True):
        assert mine is theirs is None or torch.equal(mine.flatten(), theirs.flatten())


@pytest.mark.some(8)
@pytest.mark.parametrize(
    ("spec", "fmt"), pairs(*(f"{e}:{b}:fp32" for b in BLOCKS for e in ("int8", "binary")))
)
def test_the_range_has_the_shape_of_the_scale(spec: str, fmt: str) -> None:
    x = draw(8, 48)
    observer = seeing(spec, fmt, x, x)
    expected = bs.choose_qparams(x, observer.format)[0]
    low, high, poisoned = observer.range()
    assert low.shape == high.shape == poisoned.shape == observer.qparams().scale.shape
    assert low.shape == expected.shape
    assert bool((low <= 0).all() & (high >= 0).all()) and not bool(poisoned.any())


@pytest.mark.some(27)
@pytest.mark.parametrize(("spec", "fmt"), pairs(*RANGE_FORMATS))
def test_constant_input_is_kept(spec: str, fmt: str) -> None:
    for value in (3.0, -0.0, 3.4e38):
        x = torch.full((4, 32), value)
        observer = seeing(spec, fmt, x, x)
        plain = reference.ranges(x, observer.format)
        low, high, _ = observer.range()
        a, b = (reference.numerator(lo, hi, observer.format) for lo, hi in ((low, high), plain[:2]))
        assert bool((a <= b).all())
        if spec in ("min_max", "moving_average", "percentile"):
            assert torch.equal(a, b)
        assert not bool(observer.qparams().scale.float().isnan().any())


@pytest.mark.some(3)
@pytest.mark.parametrize("spec", SPECS)
def test_nan_and_infinities_are_counted(spec: str) -> None:
    fmt = served(spec, "int8:channel-1:e8m0/floor", "binary:channel-1:fp32")
    x = draw(64, 4)
    odd = torch.cat([x, torch.full((3, 4), torch.nan), torch.full((1, 4), -torch.inf)])
    odd = odd[torch.randperm(len(odd), generator=torch.Generator().manual_seed(1))]
    clean, dirty = seeing(spec, fmt, x), seeing(spec, fmt, odd)
    assert [int(dirty.samples), int(dirty.nans), int(dirty.infinities)] == [272, 12, 4]
    assert dirty.finite == 256
    assert dirty.describe().split("; ")[0] == "272 elements, 12 NaN, 4 infinite"
    assert clean.describe().split("; ")[0] == "256 elements, 0 NaN, 0 infinite"
    assert all(bool(end.isfinite().all()) for end in dirty.range()[:2])
    if spec in SEES_ONLY_FINITE:
        assert same(clean, dirty)


@pytest.mark.some(3)
@pytest.mark.parametrize("spec", SPECS)
def test_no_data_is_an_error(spec: str) -> None:
    fmt = served(spec, "int8:tensor:fp32", "binary:tensor:fp32")
    observer = bs.observers.make(spec, fmt)
    for x in (None, torch.zeros(0, 4), torch.full((2, 4), torch.nan)):
        if x is not None:
            observer.observe(x)
        with pytest.raises(ValueError, match=rf"'{observer.name}' \({fmt}\) saw no data"):
            observer.qparams()
    observer.observe(draw(4, 4))  # what was empty or NaN left no trace
    assert bool((observer.range().high > 0).all())


@pytest.mark.parametrize(("spec", "fmt"), pairs(*STATIC, "binary:channel-1:fp32"))
def test_any_rank_and_any_number_of_rows(spec: str, fmt: str) -> None:
    x = draw(24, 8)
    size = 8 if "channel-1" in fmt else 1
    whole = seeing(spec, fmt, x)
    parts = seeing(spec, fmt, x[:4].reshape(2, 2, 8), x[4], x[5:])
    assert parts.low.shape == (1, size)
    if spec in EXACT:
        assert same(whole, parts)
    if "tensor" in fmt:
        assert same(seeing(spec, fmt, torch.tensor(3.0)), seeing(spec, fmt, torch.tensor([[3.0]])))


# --- buffers


@pytest.mark.some(5)
@pytest.mark.parametrize(("spec", "fmt"), pairs(*STATIC))
def test_state_dict_into_a_fresh_observer(spec: str, fmt: str) -> None:
    x = draw(64, 8)
    x[0, 0] = torch.nan
    old = seeing(spec, fmt, x)
    fresh = bs.observers.make(spec, fmt)
    fresh.load_state_dict(old.state_dict())
    assert same(old, fresh)
    assert fresh.describe() == old.describe()
    old.observe(2 * x)
    fresh.observe(2 * x)  # and it goes on from there
    assert same(old, fresh)
    empty = bs.observers.make(spec, fmt)
    fresh.load_state_dict(empty.state_dict())
    assert fresh.shape is None


@pytest.mark.some(2)
@pytest.mark.parametrize("spec", SPECS)
def test_moving_it_changes_no_dtype(spec: str) -> None:
    x, fmt = draw(64, 8), served(spec)
    observer, moved = seeing(spec, fmt, x), seeing(spec, fmt, x)
    dtypes = {name: buffer.dtype for name, buffer in observer.named_buffers()}
    for move in (torch.nn.Module.half, torch.nn.Module.double, torch.nn.Module.bfloat16):
        move(torch.nn.Sequential(moved))
        assert {name: buffer.dtype for name, buffer in moved.named_buffers()} == dtypes
        assert same(observer, moved)


@pytest.mark.some(3)
@pytest.mark.parametrize("spec", SPECS)
def test_memory_does_not_grow(spec: str) -> None:
    """Once what is kept as it is has been given up, as after two of these batches."""
    batches = (draw(2**10, 64, seed=i) for i in range(6))
    observer = seeing(spec, served(spec), *batches)
    before = sum(buffer.nbytes for buffer in observer.buffers())
    observer.observe(draw(2**10, 64, seed=3) * 100)
    assert sum(buffer.nbytes for buffer in observer.buffers()) <= before


# --- merging


@pytest.mark.some(16)
@pytest.mark.parametrize(("spec", "fmt"), [pair for pair in pairs(*FORMATS) if pair[0] in EXACT])
def test_merging_is_seeing_both(spec: str, fmt: str) -> None:
    a, b = draw(8, 32), 37 * draw(8, 32, seed=1)
    whole, left, right = seeing(spec, fmt, a, b), seeing(spec, fmt, a), seeing(spec, fmt, b)
    before = {name: buffer.clone() for name, buffer in left.named_buffers()}
    assert right.merge_(left) is right  # left has to grow for that, but stays as it is
    assert all(torch.equal(before[name], buffer) for name, buffer in left.named_buffers())
    assert same(right, whole)
    assert same(left.merge_(seeing(spec, fmt, b)), whole)
    assert int(left.samples) == int(right.samples) == int(whole.samples)
    nothing = bs.observers.make(spec, fmt)
    assert same(left.merge_(nothing), whole)
    assert same(nothing.merge_(left), whole)
    assert bs.observers.make(spec, fmt).merge_(bs.observers.make(spec, fmt)).shape is None


@pytest.mark.some(3)
@pytest.mark.parametrize("spec", SPECS)
def test_merging_counts_what_both_saw(spec: str) -> None:
    fmt = served(spec)
    x, y = draw(8, 32), 37 * draw(24, 32, seed=1)
    a, b = seeing(spec, fmt, x), seeing(spec, fmt, y)
    assert int(a.merge_(b).samples) == 32 * 32 and int(b.samples) == 24 * 32
    low, high, _ = a.range()
    assert bool((high > 0).all())
    assert bool((torch.maximum(-low, high) <= 2 * y.abs().max()).all())  # mse may try twice that


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(floats, min_size=1, max_size=6), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from(["int8:tensor:fp32", "uint4:tensor:fp32:asym"]),
)
def test_order_and_sharding_do_not_matter(batches, random, fmt) -> None:
    tensors = [torch.tensor(batch) for batch in batches]
    shuffled = random.sample(tensors, len(tensors))
    cut = random.randint(0, len(tensors))
    for spec, _ in (pair for pair in pairs(fmt) if pair[0] in EXACT):
        whole = seeing(spec, fmt, torch.cat(tensors))
        sharded = seeing(spec, fmt, *shuffled[:cut]).merge_(seeing(spec, fmt, *shuffled[cut:]))
        for name in ("samples", "nans", "infinities", "low", "high", "counts", "top"):
            if hasattr(whole, name) and whole.shape == sharded.shape:
                assert torch.equal(getattr(whole, name), getattr(sharded, name)), name
        if whole.finite:
            assert same(whole, sharded)
