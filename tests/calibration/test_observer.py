# SPDX-License-Identifier: BSD-3-Clause
"""An observer is a module: it returns its input, and its state is of one format and one shape."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.observer import Observer
from blockscale.core import reference
from blockscale.layers.store import QInput
from blockscale.ops.tensor import QTensor
from tests.calibration.observers.seen import draw, same, seeing


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


@pytest.mark.parametrize("spec", ["min_max", "moving_average", "percentile", "entropy", "mse"])
def test_a_number_by_itself_is_its_range(spec):
    assert seeing(spec, "int8", torch.tensor(3.0)).range().high.tolist() == [[3.0]]


def test_it_is_a_module_that_returns_its_input():
    x = draw(4, 4).requires_grad_()
    observer = bs.observers.make("min_max", "int8")
    assert observer(x) is x
    assert not observer.range().high.requires_grad
    assert list(observer.parameters()) == []


@pytest.mark.parametrize("spec", ["min_max", "mse", "percentile", "entropy"])
def test_weights_are_for_those_that_take_them(spec):
    with pytest.raises(ValueError, match=f"'{spec}' takes no weight"):
        bs.observers.make(spec, "int8").observe(draw(2, 2), weight=torch.ones(2))


@pytest.mark.slow
def test_static_inputs_take_the_scale():
    x = draw(32, 8)
    for fmt in ("int8:tensor:fp32", "uint8:channel-1:fp32:asym", "int8:tensor:e8m0/floor"):
        scale, _, zero_point = seeing("mse", fmt, x).qparams()[:3]
        static = QInput(bs.parse(fmt))
        static.set_scale(scale, zero_point, features=8)
        expected = bs.fake_quantize(x, fmt, scale, zero_point)
        assert torch.equal(static(x), expected)
        assert torch.equal(static(x.reshape(2, 16, 8)), expected.reshape(2, 16, 8))
    two = bs.parse("e2m1:channel-1:e4m3")
    scale, outer, _ = seeing("mse", two, x).qparams()[:3]
    static = QInput(two)
    static.set_scale(QTensor(scale, reference.QParams(outer), two.scale.inner, 8), features=8)
    assert static(x).isfinite().all()


def test_an_observer_of_one_s_own_is_a_class_with_a_choice():
    class Half(Observer):
        name = "half"

        def _choose(self):
            return self.low / 2, self.high / 2

    observer = bs.observers.make(Half, "int8")
    observer.observe(torch.tensor([-4.0, 2.0]))
    assert [r.item() for r in observer.range()] == [-2.0, 1.0, False]
