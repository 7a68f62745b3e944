# SPDX-License-Identifier: BSD-3-Clause
"""The errors of layers against bs.compare, and models that stay as they were."""

import copy

import pytest
import torch

import blockscale as bs
from blockscale.calibration.batches import inference
from blockscale.core.work.progress import Progress
from blockscale.selection.candidates import read
from blockscale.selection.choices import choices
from blockscale.selection.errors import Laboratory, errors_of, placed
from blockscale.selection.objective import objective
from tests.selection.models import CANDIDATES, batches, mlp


def laboratory(model):
    return Laboratory(model, batches(), batches()[:1], objective("distance"), Progress())


def test_the_output_of_each_layer_as_compare_measures_it():
    for candidate in read([CANDIDATES[0], "int8_channel x int8_token"]):
        model = mlp()
        found, _ = choices(model, [candidate])
        with inference(model):
            errors, made = errors_of(candidate, found, laboratory(model), None)
        bs.quantize_(quantized := copy.deepcopy(model), candidate.recipe())
        compared = bs.compare(model, quantized, batches())
        for layer in compared:
            assert errors[layer.name] == {"sqnr": layer.isolated.sqnr}
        assert list(made) == ["0", "2", "4"]


def test_the_damage_of_a_layer_alone():
    model, [candidate] = mlp(), read(["int2:group8:fp32"])
    found, _ = choices(model, [candidate])
    with inference(model):
        lab = laboratory(model)
        lab.remember()
        damage = lab.measure(found[1].layers(candidate), lab.batches).damage
    changed = copy.deepcopy(model)
    bs.quantize_(changed, bs.Recipe(candidate.scheme.weight, skip=["0", "4"]))
    expected = objective("distance").measure(
        torch.cat([model(*b) for b in batches()]).detach(),
        torch.cat([changed(*b) for b in batches()]).detach(),
        None,
    )
    assert damage == pytest.approx(expected.damage, rel=1e-9)


def test_what_is_put_in_is_taken_out_whatever_happens():
    model = mlp()
    layers = list(model)
    with pytest.raises(KeyboardInterrupt), placed(model, {"0": torch.nn.Identity()}):
        assert isinstance(model[0], torch.nn.Identity)
        raise KeyboardInterrupt
    assert all(a is b for a, b in zip(model, layers, strict=True))
