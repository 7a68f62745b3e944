# SPDX-License-Identifier: BSD-3-Clause
"""Which of several codes leave the least error, without measuring hopeless ones to the end."""

from collections.abc import Mapping

from blockscale.calibration.algorithms.learned.loop import Error, error_over, squared_error
from blockscale.calibration.algorithms.learned.samples import Samples
from blockscale.calibration.algorithms.learned.stage import Stage
from blockscale.ops.tensor import QTensor

HOPELESS = 1.5  # times the least error so far


def least(
    stage: Stage,
    candidates: Mapping[str, Mapping[str, QTensor]],
    samples: Samples,
    positions: int,
    error: Error = squared_error,
) -> str:
    """The candidate with the least error over all samples; of equal ones the first.

    They are measured about `positions` at a time. One with HOPELESS times the least error of what
    was measured so far drops out; if one is left, that is it.
    """
    errors = dict.fromkeys(candidates, 0.0)
    values = {
        kind: {name: q.dequantize() for name, q in codes.items()}
        for kind, codes in candidates.items()
    }
    for rows in samples.in_order(positions):
        for kind in errors:
            errors[kind] += error_over(stage, values[kind], samples, rows, error)
        best = min(errors.values())
        errors = {kind: each for kind, each in errors.items() if each <= HOPELESS * best}
        if len(errors) == 1:
            break
    return min(errors, key=errors.__getitem__)
