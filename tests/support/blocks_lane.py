# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/calibration/test_block_lane.py: `lane_of`, `walk`.
"""

from typing import Any

import blockscale as bs
from blockscale.calibration.block_calls import TensorStore
from blockscale.calibration.block_lane import Lane
from blockscale.calibration.block_record import record
from blockscale.calibration.find_blocks import find_blocks
from blockscale.layers.plan import Plan, plan_layers
from tests.calibration.walk.networks import ids


def lane_of(model: Any, kept: TensorStore, batches: Any = None) -> Lane:
    plans = [p for p in plan_layers(model, bs.Recipe("int8")) if isinstance(p, Plan)]
    return Lane(model, find_blocks(model, plans), batches or ids(), kept)


def walk(lane: Lane) -> list[list[int]]:
    found = []
    while len(lane.finished_blocks) < len(lane.blocks):
        found.append(record(lane, verify=True))
        for i in found[-1]:
            lane.run(i, keep=True)
            lane.finish(i)
    return found
