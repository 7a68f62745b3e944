# SPDX-License-Identifier: BSD-3-Clause
"""transformers says less, and float checkpoints are made once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import transformers
from torch import nn  # noqa: TC002 - beside it all others are needed

from tests.support.transformers_models import MODELS, saved

Checkpoint = tuple[type, Path]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()
    transformers.logging.set_verbosity(level)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """The class and the directory of a model of models.py, by its name."""
    made: dict[str, Checkpoint] = {}
    makers: dict[str, Callable[[], nn.Module]] = {make.__name__: make for make in MODELS}

    def checkpoint(name: str) -> Checkpoint:
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            made[name] = saved(makers[name], path), path
        return made[name]

    return checkpoint
