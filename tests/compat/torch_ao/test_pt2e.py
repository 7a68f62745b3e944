# SPDX-License-Identifier: BSD-3-Clause
"""torchao's PT2E classes with power-of-two scales, in torchao's own flow."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.compat.torch_ao import power_of_2, pt2e, to_format
from blockscale.compat.torch_ao.pt2e import OBSERVERS as OURS
from tests.compat.torch_ao.batches import batches, same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization.pt2e import observer, quantize_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationSpec
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

PER_CHANNEL = [kind for kind in OURS if "PerChannel" in kind.__name__]
OBSERVERS = [kind for kind in OURS if issubclass(kind, observer.UniformQuantizationObserverBase)]


def powers(scale: torch.Tensor) -> bool:
    return bool((scale.frexp().mantissa == 0.5).all())


def test_every_class_has_its_name() -> None:
    assert len(OURS) == 6
    for theirs, ours in OURS.items():
        assert issubclass(ours, theirs)
        assert ours is getattr(pt2e, theirs.__name__)  # prepare_pt2e looks at names


@pytest.mark.parametrize("kind", OBSERVERS)
@pytest.mark.parametrize("symmetry", ["affine", "symmetric"])
def test_observers(kind: type, symmetry: str) -> None:
    """Off: torchao's bits. On: the scale of the Format that stands for it."""
    scheme = "per_channel" if kind in PER_CHANNEL else "per_tensor"
    given: dict[str, Any] = {"qscheme": getattr(torch, f"{scheme}_{symmetry}"), "dtype": torch.int8}
    theirs, plain, ours = kind(**given), OURS[kind](**given), power_of_2(kind.with_args(**given))()
    assert repr(ours).endswith("power_of_2_scale=True)")
    for x in batches()[:1]:
        theirs(x), plain(x), ours(x)
        same(plain.calculate_qparams(), theirs.calculate_qparams())
        assert powers(ours.calculate_qparams()[0])
    assert str(to_format(ours)).split(":")[2] == "pow2/nearest"
    if kind is not observer.HistogramObserver:
        from blockscale.compat import torch_ao

        same_one = getattr(torch_ao, kind.__name__)(**given, power_of_2_scale=True)
        same_one(x)
        same(ours.calculate_qparams(), same_one.calculate_qparams())


@pytest.mark.parametrize("is_qat", [False, True])
def test_torchao_s_own_flow(is_qat: bool) -> None:
    """A quantizer's configuration through power_of_2: every scale of the program is a power."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 36, 3)).eval()
    x = torch.randn(4, 1, 8, 8)
    config = x86.get_default_x86_inductor_quantization_config(is_qat=is_qat)
    before = copy.deepcopy(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantizer = x86.X86InductorQuantizer().set_global(power_of_2(config))
        program = torch.export.export(model, (x,)).module()
        prepare = quantize_pt2e.prepare_qat_pt2e if is_qat else quantize_pt2e.prepare_pt2e
        prepared = prepare(program, quantizer)
        prepared(x)
        converted = quantize_pt2e.convert_pt2e(prepared)
    weights = [b for name, b in converted.named_buffers() if "scale" in name]
    inputs = [
        torch.tensor(node.args[1])
        for node in converted.graph.nodes
        if "quantize_per_tensor" in str(node.target)
    ]
    assert len(weights) == 2
    assert len(inputs) >= 4
    assert all(powers(scale) for scale in weights + inputs)
    assert (converted(x) - model(x)).abs().max() < 0.3
    assert repr(config) == repr(before)


class Halved(observer.MinMaxObserver):
    """A user's own of torchao's."""

    def calculate_qparams(self, **_: Any) -> Any:
        scale, zero_point = super().calculate_qparams()
        return scale * 0.6, zero_point


def test_a_user_s_own() -> None:
    theirs, made = Halved(), power_of_2(Halved)()
    for module in (theirs, made):
        module(torch.arange(-3.0, 9.0))
    scale = bs.round_to_power_of_2(theirs.calculate_qparams()[0])
    assert isinstance(made, Halved)
    assert isinstance(made, pt2e.MinMaxObserver)
    assert torch.equal(made.calculate_qparams()[0], scale)
    spec = power_of_2(QuantizationSpec(torch.int8, Halved, -128, 127))
    assert spec.observer_or_fake_quant_ctr.p.func is type(made)


def test_specs() -> None:
    spec = QuantizationSpec(torch.int8, observer.MinMaxObserver, -128, 127)
    found = power_of_2(spec)
    assert found.observer_or_fake_quant_ctr.p.func is pt2e.MinMaxObserver
    assert (found.dtype, found.quant_min, found.quant_max) == (torch.int8, -128, 127)
    assert power_of_2(spec, enabled=False).observer_or_fake_quant_ctr is pt2e.MinMaxObserver


def test_what_does_not_work_says_so() -> None:
    dynamic = x86.get_default_x86_inductor_quantization_config(is_dynamic=True)
    with pytest.raises(ValueError, match="chooses its scales at run time, as floats"):
        power_of_2(dynamic)
    with pytest.raises(ValueError, match="torchao chooses dynamic scales at run time"):
        power_of_2(observer.PlaceholderObserver.with_args(is_dynamic=True))()
    assert power_of_2(observer.PlaceholderObserver)().power_of_2_scale
    for other in (observer.AffineQuantizedObserverBase, observer.MinMaxObserver()):
        with pytest.raises(ValueError, match="only the observers and fake quantizers of torch"):
            power_of_2(other)
    assert power_of_2(observer.FixedQParamsObserver) is observer.FixedQParamsObserver
