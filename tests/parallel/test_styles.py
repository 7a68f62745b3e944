# SPDX-License-Identifier: BSD-3-Clause
"""torch's parallelize_module with our styles (over two processes: test_plan.py)."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import blockscale as bs
from blockscale.parallel.parts import STYLES


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of this process alone."""
    where = tmp_path_factory.mktemp("styles") / "meet"
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def net(fmt: str = "mxfp4") -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64, bias=False))
    layers[1].weight = layers[0].weight
    bs.quantize_(layers, fmt)
    return layers


@pytest.mark.parametrize("name", STYLES)
def test_one_process_has_the_bits_of_none(mesh: Any, name: str) -> None:
    layers, ids = net(), torch.arange(64)
    whole = layers(ids)
    at = "0" if "embedding" in name else "1"
    assert parallelize_module(layers, mesh, {at: bs.parallel.style(name)}) is layers
    assert torch.equal(layers(ids), whole)
    assert layers[0].qweight is not layers[1].qweight  # which is whole still
    parts = [layer.qweight.part for layer in layers]
    assert [bool(part) for part in parts] == [at == "0", at == "1"]


def test_what_is_refused(mesh: Any) -> None:
    with pytest.raises(ValueError, match="unknown style 'packed_colwise'; choose from colwise, "):
        bs.parallel.style("packed_colwise")
    assert repr(bs.parallel.style("rowwise")) == "bs.parallel.style('rowwise')"
    with pytest.raises(ValueError, match=r"a Linear is no quantized layer: .* torch's own styles"):
        parallelize_module(nn.Linear(4, 4), mesh, bs.parallel.style("colwise"))
    layers = net("int8:flat64:fp32")
    shared = layers[1].qweight
    with pytest.raises(ValueError, match=r"style: '0' cannot be 'rowwise': .*flattened"):
        parallelize_module(layers, mesh, {"1": bs.parallel.style("rowwise")})
    assert layers[1].qweight is shared
    cut = parallelize_module(net(), mesh, {"1": bs.parallel.style("colwise")})
    with pytest.raises(ValueError, match="each process has a part of 1 of the model's weights"):
        parallelize_module(cut, mesh, {"1": bs.parallel.style("colwise")})
    with pytest.raises(NotImplementedError, match=r"nn.Linear and nn.Embedding"):
        parallelize_module(net(), mesh, {"1": ColwiseParallel()})
