# SPDX-License-Identifier: BSD-3-Clause
"""Which quantized layer takes the place of which float layer."""

import pathlib

import pytest
from torch import nn

from blockscale import layers
from blockscale.layers.conv import QConv, QConvTranspose
from blockscale.layers.kinds import (
    QEmbedding,
    QEmbeddingBag,
    QLinear,
    QTransposedLinear,
    quantized_class,
)
from blockscale.layers.layer import QLayer
from tests.support.qat_models import Conv1D


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Linear(2, 3), QLinear),
        (nn.Conv1d(1, 1, 1), QConv),
        (nn.Conv2d(1, 1, 1), QConv),
        (nn.Embedding(2, 3), QEmbedding),
        (Conv1D(2, 3), QTransposedLinear),
        (nn.Conv3d(1, 1, 1), QConv),
        (nn.ConvTranspose1d(1, 1, 1), QConvTranspose),
        (nn.ConvTranspose2d(1, 1, 1), QConvTranspose),
        (nn.ConvTranspose3d(1, 1, 1), QConvTranspose),
        (nn.LazyConvTranspose2d(1, 1), None),
        (nn.Bilinear(2, 2, 2), None),
        (nn.LazyLinear(2), None),  # a subclass whose class changes when it has seen an input
        (nn.EmbeddingBag(2, 3), QEmbeddingBag),
        (nn.LSTM(2, 3), None),
        (nn.ReLU(), None),
    ],
)
def test_classes(module: nn.Module, kind: type[QLayer] | None) -> None:
    assert quantized_class(module) is kind


def test_a_class_of_that_name_elsewhere_is_another() -> None:
    class Conv1D(nn.Module):  # not transformers'
        pass

    assert quantized_class(Conv1D()) is None


def test_every_file_with_a_kind_is_found() -> None:
    """By what it says in its own text, so that a file that nothing imports counts too."""
    folder = pathlib.Path(layers.__file__).parent
    said = {path.stem for path in folder.rglob("*.py") if "\ndef replacement(" in path.read_text()}
    assert said == {"conv", "kinds"}
    kinds = (QConv, QConvTranspose, QEmbedding, QEmbeddingBag, QLinear)
    assert {kind.__module__.rpartition(".")[2] for kind in kinds} == said
