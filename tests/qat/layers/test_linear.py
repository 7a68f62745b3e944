"""Linear layers in training, the transposed one of transformers too."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.qat.models import Conv1D


def test_conv1d_of_transformers_is_what_the_test_model_stands_for():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D as Real

    real, ours = Real(6, 4), Conv1D(6, 4)
    ours.load_state_dict(real.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(real(x), ours(x))
    for layer in (real, ours):
        model = bs.prepare_qat(nn.Sequential(layer), bs.Recipe("int8_channel", "int8"))
        assert type(model[0]).__name__ == "QATTransposedLinear"
