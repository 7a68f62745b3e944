"""What every observer does, whatever it chooses."""

import pathlib
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.calibrate.observer import Observer
from blockscale.core import reference
from blockscale.layers.store import QInput
from blockscale.ops.tensor import QTensor

EXACT = ("min_max", "percentile", "entropy", "mse")  # merge as if one had seen everything
RANGE = ("moving_average", *EXACT)
BLOCKS = ("tensor", "channel-1", "channel0", "token", "group16", "group16@0", "tile4x8")
FORMATS = (
    "int8:tensor:fp32",
    "uint8:channel-1:fp32:asym",
    "int4:group16:fp16",
    "e2m1:group16:e8m0/floor",
    "e2m1:group16:e4m3",
    "int8:tensor:pow2/nearest:full",
    "log4:channel-1:bf16",
    "uint8:tensor:fp32",
    "int8:tensor:fp32:half:up",
    "int8:tensor:fp32:stochastic",
)


def seeing(spec, fmt, *batches):
    observer = bs.observers.make(spec, fmt)
    for batch in batches:
        observer.observe(batch)
    return observer


def same(a, b):
    """Two observers would choose the same bits."""
    return all(torch.equal(x, y) for x, y in zip(a.range(), b.range(), strict=True))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- the registry


def test_every_file_is_an_observer():
    folder = pathlib.Path(bs.observers.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "observer"}
    assert bs.observers.names() == tuple(sorted(files))
    assert set(files) == {*RANGE, "mean", "adaptive"}


def test_specs():
    make = bs.observers.make
    assert make("percentile:99.5", "int8").percentile == 99.5
    assert make("moving_average:0.5", "int8").constant == 0.5
    assert make("mse:weighted", "int8").weighted
    assert make("adaptive:min_max+percentile:99", "int8").tried == ["min_max", "percentile:99"]
    assert make(type(make("mse", "int8")), bs.parse("int8")).name == "mse"
    assert make(lambda fmt: make("percentile:99", fmt), "int8").percentile == 99
    assert str(make("mse", "mxfp4").format) == "e2m1:group32:e8m0/floor"


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("median", ValueError, "no observer 'median'; there are adaptive, entropy, mean, min_max"),
        ("min_max:3", ValueError, "'min_max' has no setting, found '3'"),
        ("percentile:many", ValueError, "the percentile is a number, found 'many'"),
        ("percentile:101", ValueError, "above 0 and at most 100, not 101"),
        ("percentile:0", ValueError, "above 0 and at most 100, not 0"),
        ("percentile:nan", ValueError, "above 0 and at most 100, not nan"),
        ("moving_average:0", ValueError, "constant is above 0 and at most 1, not 0"),
        ("mse:heavy", ValueError, "there is only 'mse:weighted'"),
        ("adaptive:mse", ValueError, r"two observers or more, found \['mse'\]"),
        (3, TypeError, "expected the name of an observer .* found 3"),
        (lambda fmt: None, TypeError, "expected the name of an observer"),
    ],
)
def test_specs_that_do_not_exist(spec, error, words):
    with pytest.raises(error, match=words):
        bs.observers.make(spec, "int8")


def test_formats_that_do_not_fit():
    for spec in EXACT[:3]:
        with pytest.raises(ValueError, match=r"ternary element is a mean, not a range.*'mean' or"):
            bs.observers.make(spec, "ternary")
    with pytest.raises(ValueError, match="comes from a range, not from a mean"):
        bs.observers.make("mean", "int8")
    with pytest.raises(ValueError, match=r"'adaptive' holds rows back.*'mse'"):
        bs.observers.make("adaptive", "mxfp4")


# --- every observer, every block


@pytest.mark.parametrize("spec", RANGE)
@pytest.mark.parametrize("block", BLOCKS)
def test_the_range_has_the_shape_of_the_scale(spec, block):
    x = draw(8, 48)
    observer = seeing(spec, f"int8:{block}:fp32", x, x)
    expected = bs.choose_qparams(x, observer.format)[0]
    low, high, poisoned = observer.range()
    assert low.shape == high.shape == poisoned.shape == observer.qparams().scale.shape
    assert low.shape == expected.shape
    assert bool((low <= 0).all() & (high >= 0).all()) and not bool(poisoned.any())


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("spec", RANGE)
def test_constant_input_is_kept(spec, fmt):
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


@pytest.mark.parametrize("spec", [*RANGE, "mean"])
def test_nan_and_infinities_are_counted_not_absorbed(spec):
    fmt = "binary:channel-1:fp32" if spec == "mean" else "int8:channel-1:e8m0/floor"
    x = draw(64, 4)
    odd = torch.cat([x, torch.full((3, 4), torch.nan), torch.full((1, 4), -torch.inf)])
    odd = odd[torch.randperm(len(odd), generator=torch.Generator().manual_seed(1))]
    clean, dirty = seeing(spec, fmt, x), seeing(spec, fmt, odd)
    assert [int(dirty.samples), int(dirty.nans), int(dirty.infinities)] == [272, 12, 4]
    assert dirty.finite == 256
    assert dirty.describe() == "272 elements, 12 NaN, 4 infinite"
    assert same(clean, dirty)
    assert clean.describe() == "256 elements, 0 NaN, 0 infinite"


@pytest.mark.parametrize("spec", [*RANGE, "adaptive"])
def test_no_data_is_an_error(spec):
    observer = bs.observers.make(spec, "int8")
    for x in (None, torch.zeros(0, 4), torch.full((2, 4), torch.nan)):
        if x is not None:
            observer.observe(x)
        with pytest.raises(ValueError, match=rf"'{spec}' \(int8:tensor:fp32\) saw no data"):
            observer.qparams()
    observer.observe(draw(4, 4))  # what was empty or NaN left no trace
    assert bool((observer.range().high > 0).all())


@pytest.mark.parametrize("spec", RANGE)
def test_any_rank_and_any_number_of_rows(spec):
    x = draw(24, 8)
    for block, size in (("tensor", 1), ("channel-1", 8)):
        whole = seeing(spec, f"int8:{block}:fp32", x)
        parts = seeing(spec, f"int8:{block}:fp32", x[:4].reshape(2, 2, 8), x[4], x[5:])
        assert parts.low.shape == (1, size)
        if spec != "moving_average":
            assert same(whole, parts)
    assert seeing(spec, "int8", torch.tensor(3.0)).range().high.tolist() == [[3.0]]


def test_other_blocks_need_the_same_scale_shape():
    observer = seeing("min_max", "int8:token:fp32", draw(4, 8))
    with pytest.raises(ValueError, match=r"had shape \(4, 1\) and now has \(5, 1\).*'channel-1'"):
        observer.observe(draw(5, 8))
    assert int(observer.samples) == 32
    features = seeing("mse", "int8:channel-1:fp32", draw(4, 8))
    with pytest.raises(ValueError, match=r"had shape \(1, 8\) and now has \(1, 9\)"):
        features.observe(draw(4, 9))


def test_dtypes():
    x = draw(8, 8).bfloat16()
    assert same(seeing("mse", "int8", x), seeing("mse", "int8", x.float()))
    with pytest.raises(TypeError, match="expected float32, bfloat16 or float16, found float64"):
        seeing("mse", "int8", x.double())


def test_it_is_a_module_that_returns_its_input():
    x = draw(4, 4).requires_grad_()
    observer = bs.observers.make("min_max", "int8")
    assert observer(x) is x
    assert not observer.range().high.requires_grad
    assert list(observer.parameters()) == []


def test_min_max_is_what_quantize_chooses():
    for fmt in FORMATS[:-1]:
        x = draw(8, 48)
        expected = reference.choose_qparams(x, bs.parse(fmt))
        found = seeing("min_max", fmt, x).qparams()
        assert all(
            a is b is None or torch.equal(a, b) for a, b in zip(expected, found, strict=True)
        )


@pytest.mark.parametrize("spec", ["min_max", "mse", "percentile", "entropy"])
def test_weights_are_for_those_that_take_them(spec):
    with pytest.raises(ValueError, match=f"'{spec}', takes no weight"):
        bs.observers.make(spec, "int8").observe(draw(2, 2), weight=torch.ones(2))


# --- buffers


@pytest.mark.parametrize("spec", [*RANGE, "adaptive", "mse:weighted"])
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint4:channel-1:fp32:asym"])
def test_state_dict_into_a_fresh_observer(spec, fmt):
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


def test_states_that_do_not_fit():
    state = seeing("mse", "int8", draw(4, 4)).state_dict()
    with pytest.raises(RuntimeError, match=r"is in format int4.*the state in int8:tensor:fp32"):
        bs.observers.make("mse", "int4:tensor:fp32").load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        bs.observers.make("min_max", "int8").load_state_dict(state)
    state["counts"] = state["counts"][..., :100]
    with pytest.raises(RuntimeError, match="size mismatch for counts"):
        bs.observers.make("mse", "int8").load_state_dict(state)


@pytest.mark.parametrize("spec", [*RANGE, "adaptive", "mse:weighted"])
def test_moving_it_changes_no_dtype(spec):
    x = draw(64, 8)
    observer, moved = seeing(spec, "int8", x), seeing(spec, "int8", x)
    dtypes = {name: buffer.dtype for name, buffer in observer.named_buffers()}
    for move in (torch.nn.Module.half, torch.nn.Module.double, torch.nn.Module.bfloat16):
        move(torch.nn.Sequential(moved))
        assert {name: buffer.dtype for name, buffer in moved.named_buffers()} == dtypes
        assert same(observer, moved)


@pytest.mark.parametrize("spec", RANGE)
def test_memory_does_not_grow(spec):
    observer = seeing(spec, "int8", *(draw(2**10, 64, seed=i) for i in range(2)))
    before = sum(buffer.nbytes for buffer in observer.buffers())
    observer.observe(draw(2**10, 64, seed=3) * 100)
    assert sum(buffer.nbytes for buffer in observer.buffers()) <= before


def test_static_inputs_take_the_scale():
    x = draw(32, 8)
    for fmt in ("int8:tensor:fp32", "uint8:channel-1:fp32:asym", "int8:tensor:e8m0/floor"):
        scale, _, zero_point = seeing("mse", fmt, x).qparams()
        static = QInput(bs.parse(fmt))
        static.set_scale(scale, zero_point, features=8)
        expected = bs.fake_quantize(x, fmt, scale, zero_point)
        assert torch.equal(static(x), expected)
        assert torch.equal(static(x.reshape(2, 16, 8)), expected.reshape(2, 16, 8))
    two = bs.parse("e2m1:channel-1:e4m3")
    scale, outer, _ = seeing("mse", two, x).qparams()
    static = QInput(two)
    static.set_scale(QTensor(scale, reference.QParams(outer), two.scale.inner, 8), features=8)
    assert static(x).isfinite().all()


# --- merging


@pytest.mark.parametrize("spec", EXACT)
@pytest.mark.parametrize("fmt", FORMATS)
def test_merging_is_seeing_both(spec, fmt):
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


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(floats, min_size=1, max_size=6), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from(["int8:tensor:fp32", "uint4:tensor:fp32:asym"]),
)
def test_order_and_sharding_do_not_matter(batches, random, fmt):
    tensors = [torch.tensor(batch) for batch in batches]
    shuffled = random.sample(tensors, len(tensors))
    cut = random.randint(0, len(tensors))
    for spec in ("min_max", "percentile:90", "mse"):
        whole = seeing(spec, fmt, torch.cat(tensors))
        sharded = seeing(spec, fmt, *shuffled[:cut]).merge_(seeing(spec, fmt, *shuffled[cut:]))
        for name in ("samples", "nans", "infinities", "low", "high", "counts", "top"):
            if hasattr(whole, name) and whole.shape == sharded.shape:
                assert torch.equal(getattr(whole, name), getattr(sharded, name)), name
        if whole.finite:
            assert same(whole, sharded)


def test_what_cannot_merge():
    int8 = bs.observers.make("mse", "int8")
    for other in (bs.observers.make("min_max", "int8"), bs.observers.make("mse", "int4"), 3):
        with pytest.raises(ValueError, match=r"cannot merge mse \(int8:tensor:fp32\)"):
            int8.merge_(other)
    a, b = (seeing("min_max", "int8:channel-1:fp32", draw(2, n)) for n in (3, 4))
    with pytest.raises(ValueError, match=r"had shape \(1, 3\) and now has \(1, 4\)"):
        a.merge_(b)
    assert int(a.samples) == 6


# --- moving average and mean, against their definitions


def test_moving_average_is_torch_ao_s():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import MovingAverageMinMaxObserver

        theirs = MovingAverageMinMaxObserver(averaging_constant=0.01)
    ours = bs.observers.make("moving_average", "uint8:tensor:fp32:asym")
    for i in range(20):
        batch = draw(64, 4, seed=i) * (i + 1)
        theirs(batch)
        ours(batch)
    low, high, _ = ours.range()
    np.testing.assert_allclose(low.item(), theirs.min_val.item(), rtol=1e-5)
    np.testing.assert_allclose(high.item(), theirs.max_val.item(), rtol=1e-5)


def test_moving_average_starts_with_its_first_data():
    observer = bs.observers.make("moving_average:0.25", "uint8:tensor:fp32:asym")
    observer.observe(torch.full((3,), torch.nan))
    observer.observe(torch.tensor([-1.0, 3.0]))
    assert [r.item() for r in observer.range()[:2]] == [-1.0, 3.0]
    observer.observe(torch.full((3,), torch.inf))
    observer.observe(torch.tensor([-2.0, 7.0]))
    assert [r.item() for r in observer.range()[:2]] == [-1.25, 4.0]


def test_moving_average_merges_by_what_each_saw():
    a = seeing("moving_average", "uint8:tensor:fp32:asym", torch.tensor([-1.0, 2.0]))
    b = seeing("moving_average", "uint8:tensor:fp32:asym", torch.tensor([-5.0, 6.0, 0, 0, 0, 0]))
    assert [r.item() for r in a.merge_(b).range()[:2]] == [-4.0, 5.0]


@pytest.mark.parametrize("spec", ["mean", "moving_average:1"])
def test_means_of_one_batch_are_the_reference_s(spec):
    x = draw(16, 8)
    for element in ("binary", "ternary"):
        for block in ("tensor", "channel-1", "channel0", "group4"):
            fmt = f"{element}:{block}:fp32"
            expected = reference.choose_qparams(x, bs.parse(fmt)).scale
            assert torch.equal(seeing(spec, fmt, x).qparams().scale, expected)


def test_mean_weighs_batches_by_their_elements():
    a, b = draw(8, 8), 9 * draw(24, 8, seed=1)
    b[0] = torch.nan
    values = torch.cat([a, b[1:]]).abs().double()
    binary = seeing("mean", "binary:tensor:fp32", a, b)
    np.testing.assert_allclose(binary.qparams().scale.item(), values.mean().item(), rtol=1e-6)
    merged = seeing("mean", "binary:tensor:fp32", b).merge_(seeing("mean", "binary:tensor:fp32", a))
    np.testing.assert_allclose(merged.range().high.item(), values.mean().item(), rtol=1e-6)


def test_an_observer_of_one_s_own_is_a_class_with_a_choice():
    class Half(Observer):
        name = "half"

        def _choose(self):
            return self.low / 2, self.high / 2

    observer = bs.observers.make(Half, "int8")
    observer.observe(torch.tensor([-4.0, 2.0]))
    assert [r.item() for r in observer.range()] == [-2.0, 1.0, False]
