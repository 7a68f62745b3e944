# SPDX-License-Identifier: BSD-3-Clause
"""torch's pipelines take quantized models as they are: two processes give the bits of one."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, SplitPoint

import blockscale as bs
from tests.calibration.dealing import begin
from tests.support import fresh

FORMATS = ["mxfp4", "nvfp4", "int4", "int8_channel"]
RECIPES = [*FORMATS, {"weight": "nvfp4", "input": "int8_token"}]
PARTS = 4


def model_of(recipe: object) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64), nn.LayerNorm(64), nn.Linear(64, 64)]
    model = nn.Sequential(*layers).eval()
    bs.quantize_(model, recipe)
    return model


def in_two(rank: int, folder: str) -> None:
    """Each recipe's model by hand and traced, in microbatches."""
    begin(rank, folder, 2)
    torch.manual_seed(1)
    x, results = torch.randn(8, 64), []
    cpu = torch.device("cpu")
    with torch.no_grad():
        for recipe in RECIPES:
            model = model_of(recipe)
            traced = pipelining.pipeline(
                model, mb_args=(x[:2],), split_spec={"2": SplitPoint.BEGINNING}
            )
            own = nn.Sequential(*list(model)[:2] if rank == 0 else list(model)[2:])
            for stage in (PipelineStage(own, rank, 2, cpu), traced.build_stage(rank, cpu)):
                schedule = ScheduleGPipe(stage, PARTS)
                results.append(schedule.step(*([x] if rank == 0 else [])))
    if rank == 1:
        torch.save(results, Path(folder) / "results.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_bits_of_one(tmp_path: Path) -> None:
    fresh.ranks(in_two, tmp_path, 2)
    results: list[Tensor] = torch.load(tmp_path / "results.pt")
    torch.manual_seed(1)
    x = torch.randn(8, 64)
    assert len(results) == 2 * len(RECIPES)
    for recipe, by_hand, traced in zip(RECIPES, results[::2], results[1::2], strict=True):
        with torch.no_grad():
            expected = torch.cat([model_of(recipe)(part) for part in x.chunk(PARTS)])
        assert torch.equal(by_hand, expected), recipe
        assert torch.equal(traced, expected), recipe
