# SPDX-License-Identifier: BSD-3-Clause
"""Where a step goes: against the mean of gradients, by its size in root mean squares."""

import torch

from blockscale.calibration.algorithms.learned.direction import Direction


def test_a_first_step_goes_against_the_gradient_by_the_rate() -> None:
    x, gradient = torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]) * 1e-6
    Direction().move(x, gradient, 0.25, 1.0)
    assert torch.allclose(x, torch.tensor([-0.25, 0.25, -0.25, 0.25]))


def test_what_hardly_matters_hardly_moves() -> None:
    x = torch.zeros(3)
    Direction().move(x, torch.tensor([10.0, 0.1, 0.0]), 0.1, 1.0)
    assert x[0] < -0.1 and -0.01 < x[1] < 0 and x[2] == 0


def test_gradients_that_turn_about_cancel() -> None:
    x, direction = torch.zeros(2), Direction()
    for turn in range(40):
        direction.move(x, torch.tensor([1.0, (-1.0) ** turn]), 0.01, 10.0)
    assert x[0] < -0.3 and abs(float(x[1])) < 0.05


def test_it_stays_within_the_ends_and_takes_gradients_of_0() -> None:
    x, direction = torch.zeros(2), Direction()
    direction.move(x, torch.zeros(2), 0.5, 0.5)
    assert x.tolist() == [0, 0]
    for _ in range(9):
        direction.move(x, torch.tensor([1.0, -1.0]), 0.3, 0.5)
    assert x.tolist() == [-0.5, 0.5]
