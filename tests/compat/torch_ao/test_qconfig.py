# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's ready-made configurations of classes that take `power_of_2_scale`."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    MinMaxObserver,
    QConfig,
    QConfigMapping,
    power_of_2,
)
from tests.compat.torch_ao.configurations import (
    qconfig,
)

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


def test_every_entry_of_a_mapping_gets_powers_of_two() -> None:
    """And what was given stays what it was."""
    q = {bits: QConfig(qconfig(bits).weight, qconfig(bits).weight) for bits in range(2, 7)}
    mapping = QConfigMapping().set_global(q[2]).set_object_type(nn.Linear, q[3])
    mapping.set_module_name_regex("b", q[4]).set_module_name("b", q[5])
    mapping.set_module_name_object_type_order("b", nn.Linear, 0, q[6])
    for enabled in (True, False):
        found, given_ones = (
            [m.global_qconfig, *(c for part in list(vars(m).values())[1:] for c in part.values())]
            for m in (power_of_2(mapping, enabled), mapping)
        )
        assert given_ones == list(q.values())
        for ours, theirs in zip(found, given_ones, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert (a().power_of_2_scale, a().quant_max) == (enabled, b().quant_max)
                assert not b().power_of_2_scale


def test_ready_made_ones() -> None:
    for name in torch_ao.qconfig.DEFAULTS:
        ours, theirs = getattr(torch_ao, name), getattr(ao, name)
        if isinstance(theirs, ao.QConfig):
            pairs = list(zip(ours, theirs, strict=True))
        else:
            pairs = [(ours, theirs)]
        for a, b in pairs:
            assert isinstance(a(), type(b()))
            if type(b()) not in (nn.Identity, ao.PlaceholderObserver):
                assert type(a()).__module__.startswith("blockscale.")
                assert (a().quant_min, a().quant_max, a().dtype) == (
                    b().quant_min,
                    b().quant_max,
                    b().dtype,
                )
                assert power_of_2(b)().calculate_qparams  # takes the argument
    with pytest.raises(AttributeError, match="has no attribute 'default_nothing'"):
        _ = torch_ao.default_nothing
    called = MinMaxObserver.with_args(dtype=torch.qint8).with_callable_args(eps=lambda: 0.25)
    assert power_of_2(called)().eps.item() == 0.25


class Own(ao.MinMaxObserver):
    """A user's own, which knows no option."""


class OwnOfOurs(MinMaxObserver):
    """A user's own of ours."""


class OwnFake(ao.FakeQuantize):
    """A user's fake quantizer, which may choose its scale anywhere."""


def test_a_user_s_observers_in_configurations() -> None:
    assert power_of_2(OwnOfOurs)().power_of_2_scale
    assert not power_of_2(Own, enabled=False)().power_of_2_scale
    fake = ao.FakeQuantize.with_args(observer=Own.with_args(dtype=torch.qint8))
    for constructor in (Own, Own.with_args(eps=0.5), Own.with_callable_args(eps=lambda: 0.5)):
        assert isinstance(power_of_2(constructor)(), Own)
        assert power_of_2(constructor)().eps == constructor().eps
    made = power_of_2(QConfig(fake, Own))
    assert made.activation().activation_post_process.power_of_2_scale
    assert made.activation().activation_post_process.dtype is torch.qint8
    assert made.weight().power_of_2_scale
    assert isinstance(made.weight(), Own)


def test_what_cannot_round_is_an_error_and_no_silence() -> None:
    for other in (OwnFake, ao.MinMaxObserver(), lambda: None, nn.Linear, ao.ObserverBase):
        with pytest.raises(ValueError, match="only the observers and fake quantizers of"):
            power_of_2(other)
    with pytest.raises(ValueError, match=r"only torch\.ao's observers can round"):
        power_of_2(ao.FakeQuantize.with_args(observer=nn.Linear))
    for chooses_nothing in (
        None, nn.Identity, ao.FixedQParamsObserver, ao.default_fixed_qparams_range_0to1_observer,
        ao.NoopObserver, ao.FixedQParamsFakeQuantize, ao.ReuseInputObserver, ao.RecordingObserver,
    ):  # fmt: skip
        assert power_of_2(chooses_nothing) is chooses_nothing


def test_formats_in_a_qconfig() -> None:
    """Constructors that know their part; copies and pickles of them."""
    fake = torch_ao.FakeQuantize.with_args(dtype="int4:group32:fp16", observer=MinMaxObserver)
    for config in (
        QConfig("bfp8", "mxfp4"),
        QConfig(torch_ao.FakeQuantize.with_args(dtype="bfp8"), fake),
        QConfig(MinMaxObserver.with_args(dtype="bfp8"), MinMaxObserver.with_args(dtype="mxfp4")),
        QConfig(
            torch_ao.FakeQuantize.with_args(observer=MinMaxObserver.with_args(dtype="bfp8")), fake
        ),
    ):
        assert isinstance(config, ao.QConfig)
        for each in (config, copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
            x, w = each.activation(), each.weight()
            assert x.format == bs.parse("bfp8")
            assert (x.part, w.part) == ("input", "weight")
            assert (x.dtype, w.dtype) == (torch.quint8, torch.qint8)
    assert QConfig("bfp8", "bfp8", ch_axis=1).activation().ch_axis == 1
    plain = QConfig(None, MinMaxObserver)
    assert plain.activation is None
    assert plain.weight is MinMaxObserver
    rounded = power_of_2(QConfig("int8", "nvfp4"))
    assert str(rounded.activation().format) == "int8:tensor:pow2/nearest"
    assert str(rounded.weight().format) == "e2m1:group16:pow2/nearest"
