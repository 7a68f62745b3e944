# SPDX-License-Identifier: BSD-3-Clause
"""What contestants are asked for is the same data each time."""

import torch

from blockscale.bench.requests import Layer, Primitive, normal


def test_what_a_peer_is_spared_is_not_counted(monkeypatch):
    monkeypatch.setattr("blockscale.bench.requests.last_cache", lambda device: 1024)
    wanted = Primitive("quantize", "int8", (64, 64), torch.float32)
    assert wanted.reads == 2
    assert wanted.bytes() - wanted.bytes(1) == 4 * 64 * 64


def test_the_same_numbers_in_every_run():
    x = normal((3, 5), torch.float32, "cpu")
    assert torch.equal(x, torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(normal((3, 5), torch.bfloat16, "cpu"), x.bfloat16())


def test_a_layer():
    layer = Layer(64, 8, dtype=torch.bfloat16)
    assert (tuple(layer.weight.shape), layer.weight.dtype) == ((8, 64), torch.bfloat16)
    module = layer.module()
    assert torch.equal(module[0].weight, layer.weight)
    assert module[0].weight.data_ptr() != layer.weight.data_ptr()  # it is replaced in place
    assert not module.training and module[0].bias is None
    assert layer == Layer(64, 8, dtype=torch.bfloat16, made={"a": 1})  # what is kept tells nothing


def test_a_primitive():
    wanted = Primitive("quantize", "mxfp4", (4, 64), torch.bfloat16)
    assert wanted.spelling == "e2m1:group32:e8m0/floor"
    assert wanted.bytes() == 4 * 64 * 2 + 4 * 32 + 4 * 2
    assert wanted.x.dtype == torch.bfloat16
