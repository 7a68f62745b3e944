# SPDX-License-Identifier: BSD-3-Clause
"""The parts of computed weights, by names and shapes; torch's own modules say what they give."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from blockscale.layers.computed_files import stored_computed

Build = Callable[[], nn.Module]
new, power = parametrizations.weight_norm, parametrizations.spectral_norm


def stepped(layer: nn.Module) -> nn.Module:
    """After a step of training, without which the older hook's vectors are random."""
    layer(torch.randn(1, 4, 8))
    return layer


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("build", "how", "dims"),
    [
        (lambda: new(nn.Linear(6, 4)), "weight_norm", (0,)),
        (lambda: new(nn.Linear(6, 4), dim=1), "weight_norm", (1,)),
        (lambda: new(nn.Linear(6, 4), dim=None), "weight_norm", (-1,)),
        (lambda: new(nn.Linear(6, 1)), "weight_norm", (0,)),
        (lambda: new(nn.Conv1d(1, 4, 5), dim=2), "weight_norm", (2,)),
        (lambda: weight_norm(nn.Conv2d(4, 6, 3), dim=1), "weight_norm", (1,)),
        (lambda: power(nn.Linear(6, 4)), "spectral_norm", (0,)),
        (lambda: power(nn.ConvTranspose1d(6, 4, 3)), "spectral_norm", (1,)),
        (lambda: power(nn.ConvTranspose1d(4, 4, 3)), "spectral_norm", (0, 1)),
        (lambda: power(nn.Linear(4, 4), dim=1), "spectral_norm", (0, 1)),
        (lambda: spectral_norm(nn.Conv2d(4, 4, 3)), "spectral_norm", (0, 1)),
        (lambda: stepped(spectral_norm(nn.ConvTranspose1d(4, 4, 3))), "spectral_norm", (0, 1)),
    ],
)
def test_found_and_computed(build: Build, how: str, dims: tuple[int, ...]) -> None:
    layer: Any = build().eval()
    state = layer.state_dict()
    found = stored_computed({f"a.b.{name}": tuple(each.shape) for name, each in state.items()})
    (each,) = found.values()
    assert (each.name, each.how, each.dims, each.owner) == ("a.b.weight", how, dims, "a.b")
    value = each.value(*(state[part.removeprefix("a.b.")] for part in each.parts))
    for hook in layer._forward_pre_hooks.values():
        hook(layer, ())
    assert torch.equal(value, layer.weight)


def test_at_the_top_level() -> None:
    state = new(nn.Linear(6, 4)).state_dict()
    assert [*stored_computed({name: tuple(t.shape) for name, t in state.items()})] == ["weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_where_it_says_so(dtype: torch.dtype) -> None:
    """Large enough for several threads."""
    v, g = torch.randn(300, 1111).to(dtype), torch.rand(300, 1).to(dtype)
    (each,) = stored_computed({"x.weight_v": (300, 1111), "x.weight_g": (300, 1)}).values()
    whole = each.value(v, g)
    assert each.by_rows(dtype) == (dtype != torch.float16)
    for start, stop in ((0, 1), (7, 133), (133, 300)):
        assert not each.by_rows(dtype) or torch.equal(
            whole[start:stop], each.value(v[start:stop], g[start:stop])
        )


@pytest.mark.parametrize(
    "shapes",
    [
        {"x.weight_v": (4, 6), "x.weight_g": (6,)},
        {"x.weight_v": (4, 6)},
        {"x.weight_v": (0, 6), "x.weight_g": (0, 1)},
        {"x.weight_v": (4,), "x.weight_g": (4,)},
        {"x.weight_v": (3, 1, 1, 6), "x.weight_g": (1, 1, 1, 1)},
        {"x.weight_v": (4, 6), "x.weight_g": (4, 1), "x.weight": (4, 6)},
        {"x.weight_orig": (4, 6), "x.weight_mask": (4, 6)},
        {"x.weight_orig": (4, 6), "x.weight_u": (5,), "x.weight_v": (6,)},
        {"x.parametrizations.weight.original": (4, 4)},
        {f"x.parametrizations.weight.{end}": shape
         for end, shape in (("original0", (4, 1)), ("original1", (4, 6)), ("1._u", (4,)))},
    ],
)  # fmt: skip
def test_others(shapes: dict[str, tuple[int, ...]]) -> None:
    assert stored_computed(shapes) == {}
