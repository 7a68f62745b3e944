# SPDX-License-Identifier: BSD-3-Clause
"""A user's own observers with powers of two: compared with what they choose without."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao
from torch.ao.quantization.observer import ObserverBase, UniformQuantizationObserverBase
from torch.jit.frontend import NotSupportedError

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import FakeQuantize, power_of_2
from blockscale.compat.torch_ao.option import with_option
from tests.compat.torch_ao.batches import same

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


class Clipped(ao.PerChannelMinMaxObserver):
    """Sees less of the range."""

    def __init__(self, part: float = 0.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x * self.part)
        return x


class Quantile(UniformQuantizationObserverBase):
    """Computes its range late, and hands it to torch.ao's base."""

    def __init__(self, dtype: torch.dtype = torch.quint8, **kwargs: Any):
        super().__init__(dtype=dtype, **kwargs)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().flatten())
        return x

    def calculate_qparams(self, **_: Any) -> Any:
        x = torch.cat(self.seen)
        return self._calculate_qparams(x.quantile(0.01), x.quantile(0.99))


class Halved(ao.MinMaxObserver):
    """Changes what the base computes from a range."""

    def _calculate_qparams(self, min_val: Tensor, max_val: Tensor) -> tuple[Tensor, Tensor]:
        scale, zero_point = super()._calculate_qparams(min_val, max_val)
        return scale * 0.6, zero_point


class Alone(ObserverBase):
    """Of no class but the barest base, with a rule of its own for scale and zero point."""

    def __init__(self, qscheme: torch.qscheme = torch.per_tensor_affine, dtype: Any = torch.qint8):
        super().__init__(dtype)
        self.qscheme, self.quant_min, self.quant_max = qscheme, -128, 127

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return x

    def calculate_qparams(self, **_: Any) -> Any:
        scale = self.x.std() / 20
        if self.qscheme == torch.per_tensor_symmetric:
            return scale.reshape(1), torch.tensor([0])
        zero = -128 - torch.round(self.x.min() / scale)
        return scale.reshape(1), zero.reshape(1).clamp(-128, 127).int()


class Bare(ObserverBase):
    """Says nothing about its integers."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    def calculate_qparams(self, **_: Any) -> Any:
        return torch.ones(1), torch.zeros(1)


class Deep(Alone):
    """Changes what its base chooses."""

    def calculate_qparams(self, **_: Any) -> Any:
        scale, zero_point = super().calculate_qparams()
        return 1.3 * scale, zero_point


class OwnOfOurs(torch_ao.MinMaxObserver):
    """A rule of its own over a class that takes the option."""

    def calculate_qparams(self, **_: Any) -> Any:
        scale, zero_point = super().calculate_qparams()
        return scale * 0.3, zero_point


class Again(OwnOfOurs):
    """And once more."""

    def calculate_qparams(self, **_: Any) -> Any:
        scale, zero_point = super().calculate_qparams()
        return scale * 1.7, zero_point


class OfMade(with_option(Clipped)):  # type: ignore[misc]
    """A user's subclass of a class that was made."""


class Mixed(torch_ao.MinMaxObserver, Halved):
    """The mixin as a user writes it."""


OWN = (Clipped, Quantile, Halved, Alone, Deep)


def batches() -> list[Tensor]:
    """The same ones at each call."""
    random = torch.Generator().manual_seed(1)
    wide = torch.tensor([[0.003], [0.2], [1.0], [7.0]])
    return [(torch.randn(4, 50, generator=random) + 0.5) * wide for _ in range(2)]


def seen(observer: Any) -> Any:
    for x in batches():
        assert observer(x) is x
    return observer


@pytest.mark.parametrize("kind", OWN)
def test_a_user_s_class(kind: type) -> None:
    """Off: its own numbers. On: its scale rounded, and a zero point for the range it covered."""
    theirs = seen(kind()).calculate_qparams()
    made = power_of_2(kind, enabled=False)
    assert issubclass(made, kind)
    assert repr(made()).startswith(kind.__name__ + "(")
    same(seen(made()).calculate_qparams(), theirs)
    ours = seen(power_of_2(kind)())
    (scale, zero), (float_scale, float_zero) = ours.calculate_qparams(), theirs
    assert torch.equal(scale, bs.round_to_power_of_2(float_scale))
    assert (zero.dtype, zero.shape) == (float_zero.dtype, float_zero.shape)
    low = (ours.quant_min - float_zero).double() * float_scale.double()
    covered = (ours.quant_min - zero).double() * scale.double()
    inside = (zero > ours.quant_min) & (zero < ours.quant_max)
    # half a step of either scale: the two zero points are both rounded
    assert bool(((low - covered).abs() <= (scale + float_scale) / 2)[inside].all())
    assert bool(inside.any())


def test_symmetric_schemes_keep_their_zero_point() -> None:
    made = seen(power_of_2(Alone)(torch.per_tensor_symmetric))
    theirs = seen(Alone(torch.per_tensor_symmetric)).calculate_qparams()
    same(made.calculate_qparams(), (bs.round_to_power_of_2(theirs[0]), theirs[1]))


def test_numbers_by_hand() -> None:
    """Steps of 0.012 from -0.6 (code -128, zero point -78) become steps of 2^-6: 38.4 below 0."""
    scale, zero = torch.tensor([0.012]), torch.tensor([-78])
    observer = power_of_2(Alone)()
    found = torch_ao.observers.rounded(observer, scale, zero)
    same(found, (torch.tensor([2.0**-6]), torch.tensor([-128 + 38])))
    same(torch_ao.observers.rounded(observer, *found), found)  # a power stays, and its zero point


@pytest.mark.parametrize("kind", [Mixed, OwnOfOurs, Again])
def test_subclasses_of_ours(kind: type) -> None:
    """Rules of their own are neither shadowed nor left unrounded, nor rounded twice."""
    off = seen(kind()).calculate_qparams()
    if kind is Mixed:
        same(off, seen(Halved()).calculate_qparams())
    scale = seen(kind(power_of_2_scale=True)).calculate_qparams()[0]
    assert torch.equal(scale, bs.round_to_power_of_2(off[0]))
    assert power_of_2(kind)().power_of_2_scale


def test_copies_pickles_and_state() -> None:
    made = power_of_2(Clipped)
    assert with_option(Clipped) is with_option(Clipped)
    assert with_option(with_option(Clipped)) is with_option(Clipped)
    observer = seen(made(part=0.25))
    for other in (copy.deepcopy(observer), pickle.loads(pickle.dumps(observer))):
        same(other.calculate_qparams(), observer.calculate_qparams())
        assert type(other) is type(observer)
    assert pickle.loads(pickle.dumps(made)).p.func is with_option(Clipped)
    assert pickle.loads(pickle.dumps(OfMade)) is OfMade
    file = io.BytesIO()
    torch.save(observer, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).part == 0.25
    Clipped().load_state_dict(observer.state_dict())


def test_torch_script_of_a_user_s_class() -> None:
    """As without the option, where the class has no rule of its own."""

    class Plain(ao.MinMaxObserver):
        pass

    observer = power_of_2(Plain)()
    with pytest.warns(DeprecationWarning):
        scripted = torch.jit.script(observer)
    for x in batches():
        scripted(x)
        observer(x)
    same(scripted.calculate_qparams(), observer.calculate_qparams())
    with pytest.warns(DeprecationWarning), pytest.raises(NotSupportedError):  # no floats in silence
        torch.jit.script(power_of_2(Halved)())


def test_fake_quantizers_take_any_of_them() -> None:
    """Also torch.ao's own class where only the import of FakeQuantize was changed."""
    for kind in (ao.MinMaxObserver, ao.MinMaxObserver.with_args(dtype=torch.quint8), Quantile):
        fake = FakeQuantize(observer=kind, power_of_2_scale=True)
        y = fake(x := batches()[1])
        scale, zero = fake.activation_post_process.calculate_qparams()
        assert bool((scale.frexp().mantissa == 0.5).all())
        assert torch.equal(y, ((x / scale).round() + zero).clamp(0, 255).sub(zero) * scale)
    assert type(FakeQuantize(observer=ao.MinMaxObserver).activation_post_process) is (
        ao.MinMaxObserver
    )


def test_torch_ao_s_own_flow_with_a_user_s_class() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)).train()
    fake = ao.FakeQuantize.with_args(observer=Halved)
    weight = ao.FakeQuantize.with_args(observer=Clipped, dtype=torch.qint8)
    model.qconfig = power_of_2(ao.QConfig(fake, weight))
    with pytest.warns(DeprecationWarning):
        ao.prepare_qat(model, inplace=True)
    model(torch.randn(16, 8))
    scales = [m.scale for m in model.modules() if isinstance(m, ao.FakeQuantize)]
    assert len(scales) >= 4
    assert all(bool((scale.frexp().mantissa == 0.5).all()) for scale in scales)


def test_what_says_too_little_is_an_error() -> None:
    with pytest.raises(ValueError, match="Bare has no qscheme, quant_min, quant_max, which give"):
        power_of_2(Bare.with_args(dtype=torch.qint8))()
    power_of_2(Bare, enabled=False)(dtype=torch.qint8)
    for kind in (ObserverBase, nn.Linear, ao.RecordingObserver, 3, None):
        assert with_option(kind) is kind
