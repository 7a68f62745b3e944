# SPDX-License-Identifier: BSD-3-Clause
"""What a run would do is decided before it begins, to the byte."""

import json
from pathlib import Path

import pytest
import torch

from blockscale.core.parse import formats
from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.header import lay_out, tensor_of
from tests.files.directory.places import Untouched
from tests.support import fresh
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


@pytest.mark.some(32)
@pytest.mark.parametrize("name", formats())
def test_the_predicted_size_is_kept(place, name):
    plan = plan_directory(place.model, place.out, name)
    quantize_directory(place.model, place.out, name, force=True)
    for shard in plan.shards:
        assert (place.out / shard.name).stat().st_size == shard.size
    assert sum(len(data) for data in contents(place.out).values()) <= plan.size


# A model of 1.02 T parameters: 61 layers of 384 experts, as Kimi K2 has them.
LARGE = """
import json, pathlib, sys, time
from blockscale.files.directory.plan import make_plan
from blockscale.files.directory.shared_run import pieces_of
from blockscale.files.directory.tops import joined_in
from blockscale.core.recipe import Recipe

began = time.process_time()
plan = make_plan(pathlib.Path(sys.argv[1]), Recipe("nvfp4"), 0)
planned = time.process_time() - began
joined = joined_in(plan.shards)
pieces = [piece for shard in plan.shards for piece in pieces_of(shard, {}, joined)]
[line] = [n for n in pathlib.Path("/proc/self/status").read_text().splitlines() if "VmHWM" in n]
print(json.dumps({
    "seconds": planned, "peak": int(line.split()[1]) * 1024,
    "tensors": sum(len(shard.tensors) for shard in plan.shards), "pieces": len(pieces),
    "dealt": sum(len(piece.tensors) for piece in pieces),
    "source": sum(tensor.source.nbytes for shard in plan.shards for tensor in shard.tensors),
}))
"""


def write_sparse(folder: Path) -> None:
    """121 shards of holes, two for a layer but the first."""
    folder.mkdir()
    for shard in range(121):
        layer, half = divmod(shard + 1, 2)
        names = {f"model.layers.{layer}.self_attn.{p}_proj.weight": (7168, 7168) for p in "qo"}
        sizes = {"gate": (2048, 7168), "up": (2048, 7168), "down": (7168, 2048)}
        experts = {
            f"model.layers.{layer}.mlp.experts.{192 * half + e}.{p}_proj.weight": size
            for e in range(192) for p, size in sizes.items()
        }  # fmt: skip
        kinds = {
            n: tensor_of(torch.bfloat16, s)
            for n, s in (names | experts if half else experts).items()
        }
        header, placed = lay_out(kinds, {"format": "pt"})
        with (folder / f"model-{shard + 1:05}-of-00121.safetensors").open("wb") as file:
            file.write(header)
            file.truncate(len(header) + sum(each.nbytes for each in placed.values()))


@pytest.mark.slow
def test_a_model_of_a_trillion_parameters_is_planned_in_a_gigabyte(tmp_path):
    write_sparse(tmp_path / "model")
    done = fresh.run(LARGE, tmp_path / "model", check=True)
    found = json.loads(done.stdout)
    print(found)
    assert found["source"] > 2e12 and found["tensors"] == found["dealt"] > 69_000
    assert found["source"] / 2**28 / 2 < found["pieces"] < found["tensors"] / 4
    assert found["peak"] < 1e9
