# SPDX-License-Identifier: BSD-3-Clause
"""Before a run: what kernels choose by measurements, measured on this machine and kept."""

import importlib
from collections.abc import Callable
from typing import Any

import blockscale as bs
from blockscale.bench import tune_cpu
from blockscale.bench.groups import linear
from blockscale.bench.settings import Settings

Tuner = Callable[[str, str, tuple[int, int, int]], Any]


def tune(settings: Settings, say: Callable[[str], None], tuner: Tuner | None = None) -> None:
    """On CUDA, measure every recipe and shape of the run but those that have one way to run.

    On the CPU, measure its kernels' choices, which hold for every format and shape. Raises
    ValueError for a device that has no choices.
    """
    if settings.kind == "cpu":
        tune_cpu.tune(say)
        return
    if settings.kind != "cuda":
        raise ValueError(f"--tune: the kernels of {settings.device} have no choices to measure")
    tuner = tuner or importlib.import_module("blockscale.kernels.cuda.tune").tune_linear
    recipes = [recipe for recipe in linear.recipes(settings) if settings.picks(recipe[0])]
    for (k, n), rows in settings.sizes.linear.items():
        for weight, given in recipes:
            spelled = str(bs.parse(given)) if given else ""
            try:
                for m in rows:
                    tuner(str(bs.parse(weight)), spelled, (m, n, k))
            except ValueError as error:
                say(f"not tuned: {linear.label(weight, given)}: {error}")
            else:
                say(f"tuned: {linear.label(weight, given)}, k={k}, n={n}")
