# SPDX-License-Identifier: BSD-3-Clause
"""optimum-quanto: shapes that no file has, and what is refused. Values: test_recorded.py."""

import pytest
import torch

import blockscale as bs
from tests.export.checkpoints.layouts.recorded import cases, directory

STORED, VALUES, CONFIG = cases("quanto")["qint4 bytes fp32"]


def opened(path, stored, config=CONFIG):
    kept = {name: tensor for name, tensor in stored.items() if tensor is not None}
    return bs.checkpoint(directory(path / "d", kept, config))


def test_the_bias_tells_the_shape(tmp_path):
    with opened(tmp_path, STORED) as found:
        told = found.stored["a.weight"]
        assert (told.shape, told.flat) == ((16, 256), False)
        assert told.format == "uint4:group128:fp32:offset" and set(found) == {"a.weight", "a.bias"}
    with opened(tmp_path, STORED | {"a.bias": None}) as found:
        told = found.stored["a.weight"]
        assert (told.shape, told.flat) == ((32, 128), True)
        assert torch.equal(found.dequantize("a.weight").view(16, 256), VALUES)


def test_the_map_is_not_needed(tmp_path):
    with opened(tmp_path, STORED, {}) as found:
        assert found.producer == "optimum-quanto"
        assert torch.equal(found.dequantize("a.weight"), VALUES)


def test_activations_that_are_quantized_are_told(tmp_path):
    config = {"modules": {"a": {"weights": "qint4", "activations": "qint8"}}}
    with opened(tmp_path, STORED, config) as found:
        assert found.warnings == ["a: the quantization of its activations is ignored"]


INT8 = cases("quanto")["qint8 bytes fp32"][0]


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (STORED | {"a.weight._scale": torch.ones(33, 1)}, "which match no qint4 or qint2"),
        (STORED | {"a.weight._shift": torch.ones(32, 1).half()}, "expected the same float dtype"),
        (STORED | {"a.weight._shift": torch.ones(32, 1).char()}, "expected the same float dtype"),
        (INT8 | {"a.weight._scale": torch.ones(15, 1)}, "which match no qtype"),
        (INT8 | {"a.weight._data": torch.ones(16, 256)}, "which match no qtype"),
    ],
)
def test_what_is_refused(stored, told, tmp_path):
    with opened(tmp_path, stored, {}) as found:
        assert told in found.stored["a.weight"].unread
