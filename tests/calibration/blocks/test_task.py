# SPDX-License-Identifier: BSD-3-Clause
"""What a block algorithm is given by hand, without a walk."""

import torch

import blockscale as bs
from blockscale.calibration.blocks.task import BlockTask, Call
from blockscale.layers.plan import plan_layers
from blockscale.layers.supplied import Supplied
from tests.calibration.walk.networks import GROUPS, Block, Plain


def test_a_task_made_by_hand() -> None:
    torch.manual_seed(0)
    block = Block(16).eval()
    plans = plan_layers(block, bs.Recipe(GROUPS))
    x = torch.randn(2, 3, 16)
    with torch.no_grad():
        target = block(x)[0]
    places = {plan.name: Supplied() for plan in plans}
    task = BlockTask("", block, plans, places, [Call((x,), {})], [target])
    algorithm = Plain()
    made = algorithm.quantize_block(task)
    assert sorted(made) == sorted(plan.name for plan in plans)
    assert torch.equal(algorithm.tasks[0]["gave"][0], target)
    assert (task.grams, task.seed, task.progress) == ({}, 0, None)
