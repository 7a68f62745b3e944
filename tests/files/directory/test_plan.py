# SPDX-License-Identifier: BSD-3-Clause
"""What a run would do is decided before it begins, to the byte."""

import torch

from blockscale.core.parse import formats
from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from tests.files.directory.places import Untouched
from tests.support.file_models import contents, write_model


def test_names_that_collide(tmp_path):
    tensors = {"a.weight": torch.ones(2, 2), "a.weight.codes": torch.ones(2)}
    place = Untouched(tmp_path, write_model(tmp_path / "model", tensors))
    place.refuses(
        "has a tensor 'a.weight.codes', a name that a part of the quantized 'a.weight' needs: skip"
    )


def test_recipes_without_effect(place):
    place.refuses("unknown format 'mxfp5'", "mxfp5", ValueError)
    match = (
        "the recipe quantizes nothing in .*: a vector, .*the recipe has no format for its weight"
    )
    place.refuses(match, Recipe(), ValueError)
    place.refuses("the recipe quantizes nothing in", Recipe("mxfp4", skip=["*"]), ValueError)


def test_the_predicted_size_is_kept(place):
    for name in formats():
        plan = plan_directory(place.model, place.out, name)
        quantize_directory(place.model, place.out, name, force=True)
        for shard in plan.shards:
            assert (place.out / shard.name).stat().st_size == shard.size
        assert sum(len(data) for data in contents(place.out).values()) <= plan.size
