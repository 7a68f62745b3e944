# SPDX-License-Identifier: BSD-3-Clause
"""The reference gives the same bits on a GPU as on a CPU. Needs CUDA: `pytest -m gpu tests/gpu`."""

import pytest
import torch

import blockscale as bs
from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.ops import primitives
from tests.support.gpu_cuda_reference import SPELLINGS, hard_inputs

pytestmark = pytest.mark.gpu


def bits(x):
    """A tensor's bits as integers, every NaN alike: its payload is not part of the contract."""
    if not x.is_floating_point():
        return x.long()
    whole = x.float().view(torch.int32).long()
    return torch.where(x.isnan(), torch.tensor(-1, device=x.device), whole)


def same(a, b):
    return torch.equal(bits(a), bits(b.cpu()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_cuda_equals_cpu(spelling, dtype):
    fmt, x = parse(spelling), hard_inputs(dtype)
    seed = torch.tensor([7, 3])
    results = []
    for device in ("cpu", "cuda"):
        y, s = x.to(device), seed.to(device)
        qparams = reference.choose_qparams(y, fmt)
        codes = reference.quantize(y, qparams, fmt, s)
        packed = primitives.pack(codes, spelling)
        values = reference.dequantize(codes, qparams, fmt, dtype)
        mask = reference.in_range(y, qparams, fmt)
        unpacked = primitives.unpack(packed, spelling, y.shape[-1])
        results.append([*primitives.to_list(qparams), codes, packed, unpacked, values, mask])
    names = ["qparams"] * (len(results[0]) - 5) + ["codes", "packed", "unpacked", "values", "mask"]
    wrong = [n for n, a, b in zip(names, *results, strict=True) if not same(a, b)]
    assert wrong == []


def test_a_quantized_model_moves_to_the_gpu():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.Linear(64, 64))
    bs.quantize_(model, bs.Recipe("nvfp4", input="mxfp8"))
    tokens = torch.randint(50, (4, 9))
    expected = model(tokens)
    found = model.cuda()(tokens.cuda()).cpu()
    # one matmul in another order of summation: 64 products each (docs/numerics.md, section 7)
    bound = 64 * 2**-24 * 64 * expected.abs().max().item()
    assert torch.allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions_are_float32(transposed):
    """cuDNN's own default is TF32, which keeps 11 bits: errors of 1e-3 where float32 has 1e-6."""
    torch.manual_seed(0)
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    model = torch.nn.Sequential(kind(64, 64, 3, padding=1, bias=False))
    bs.quantize_(model, "int8_channel")
    x, gradient = torch.randn(2, 64, 16, 16), torch.randn(2, 64, 16, 16)
    found = []
    for device in ("cpu", "cuda"):
        own = x.clone().to(device).requires_grad_()
        model.to(device)(own).backward(gradient.to(device))
        found.append(own.grad.cpu())
    wanted, ours = found
    assert (ours - wanted).abs().max() <= 1e-5 * wanted.abs().max()
