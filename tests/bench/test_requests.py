# SPDX-License-Identifier: BSD-3-Clause
"""The bytes that are counted are those that tensors have."""

import warnings

import pytest
import torch

import blockscale as bs
from blockscale.bench.groups.primitives import MORE
from blockscale.bench.requests import (
    Contestant,
    Layer,
    Primitive,
    best,
    normal,
    reads,
    stored_bytes,
    traffic,
)
from blockscale.bench.timing import Racer, Timing, race
from tests.support.bench_runs import ticking

SPELLINGS = [*bs.formats(), *MORE, "int4:group32:(uint4:channel0:fp32)", "e2m1:tile2x8:bf16"]
SPELLINGS += ["uint4:group32:fp16:offset", "uint4:group32:fp32:asym(fp16)", "nf4:flat64:fp32"]
SPELLINGS += [
    "uint4:group8:(uint6:group2:fp16):offset(uint6:group2:fp16)",
    "int4:flat8:(e4m3:tensor:bf16)",
]


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")
@pytest.mark.parametrize("shape", [(3, 40), (2, 3, 33)])
@pytest.mark.parametrize("name", SPELLINGS)
def test_stored_bytes_are_those_of_the_tensors(name, shape):
    fmt = bs.parse(name)
    q = bs.quantize(torch.randn(shape), fmt, seed=1 if fmt.rounding == "stochastic" else None)
    assert stored_bytes(fmt, shape) == q.nbytes


def test_bytes_of_a_scalar():
    for name in ("int8", "int4:tensor:fp32"):
        q = bs.quantize(torch.tensor(1.0), name)
        assert stored_bytes(q.format, ()) == q.nbytes


@pytest.mark.parametrize(
    ("name", "cache", "times"),
    [
        ("int8", 1 << 10, 2),  # 64 x 64 float32 is 16 KiB, under one scale
        ("int8", 1 << 14, 1),
        ("nvfp4", 1 << 10, 2),  # its outer scale
        ("mxfp4", 1 << 10, 1),
        ("int8_channel", 1 << 10, 1),
        ("int8_channel", 1 << 7, 2),  # a row is 256 bytes
        ("int8:channel1:fp32", 1 << 10, 1),  # a few columns at a time fit
        ("int4:group32:(uint4:channel0:fp32)", 1 << 10, 1),
    ],
)
def test_a_scale_that_spans_more_than_the_cache_needs_two_reads(name, cache, times):
    assert reads(bs.parse(name), (64, 64), torch.float32, cache) == times


def test_bytes_of_primitives():
    fmt, shape = bs.parse("mxfp4"), (4096, 4096)
    x, codes, scales = 4 * 4096**2, 4096**2 // 2, 4096**2 // 32
    assert traffic("quantize", fmt, shape, torch.float32, 1) == x + codes + scales
    assert traffic("dequantize", fmt, shape, torch.float32, 1) == x + codes + scales
    assert traffic("dequantize", fmt, shape, torch.bfloat16, 1) == x // 2 + codes + scales
    assert traffic("fake_quantize", fmt, shape, torch.float32, 1) == 2 * x
    assert traffic("fake_quantize", fmt, shape, torch.float32, 2) == 3 * x
    with pytest.raises(ValueError, match="unknown primitive 'transpose'; choose from quantize"):
        traffic("transpose", fmt, shape, torch.float32, 1)


# What contestants are asked for is the same data each time.


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
    assert layer == Layer(64, 8, dtype=torch.bfloat16, cache={"a": 1})  # what is kept tells nothing


def test_a_primitive():
    wanted = Primitive("quantize", "mxfp4", (4, 64), torch.bfloat16)
    assert wanted.spelling == "e2m1:group32:e8m0/floor"
    assert wanted.bytes() == 4 * 64 * 2 + 4 * 32 + 4 * 2
    assert wanted.x.dtype == torch.bfloat16


def test_warnings_of_peers_stay_inside():
    def noisy():
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        race([Racer(Contestant("theirs", "peer", noisy), 0.0, ticking(1.0))])
        with pytest.raises(DeprecationWarning):
            Racer(Contestant("mine", "ours", noisy), 0.0, ticking(1.0))


def test_a_missing_kernel_is_recorded_and_not_warned_of():
    def slow():
        warnings.warn("no cpu kernel runs pack for int8 on these tensors", stacklevel=1)

    mine = Contestant("mine", "ours", slow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mine.quiet():
            mine.call()
        with pytest.raises(UserWarning, match="no cpu kernel runs"):
            mine.call()


def test_the_best_of_some():
    times = {n: Timing(s, s, 1, 1) for n, s in (("copy: a", 3.0), ("copy: b", 2.0), ("c", 1.0))}
    assert best(times, "copy: ") == 2.0
    assert best(times, "") == 1.0
