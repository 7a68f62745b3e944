# SPDX-License-Identifier: BSD-3-Clause
"""New tensors on the device are torch's."""

import pytest
import torch

from tests.kernels.webgpu.torch_ops.numbers import same

DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factories(dtype: torch.dtype, device: torch.device) -> None:
    options = {"dtype": dtype, "device": device}
    assert same(torch.zeros(3, 5, **options), torch.zeros(3, 5, dtype=dtype))
    assert same(torch.ones(7, **options), torch.ones(7, dtype=dtype))
    assert same(torch.full((2, 3), 1, **options), torch.full((2, 3), 1, dtype=dtype))
    assert same(torch.tensor([1, 0, 1], **options), torch.tensor([1, 0, 1], dtype=dtype))
    assert torch.empty(4, 2, **options).shape == (4, 2)
    strided = torch.empty_strided((2, 3), (1, 2), **options)
    assert strided.stride() == (1, 2)
    strided.fill_(1)
    assert same(strided, torch.ones(2, 3, dtype=dtype))


def test_factories_of_numbers(device: torch.device) -> None:
    assert same(torch.arange(5, device=device), torch.arange(5))
    assert same(torch.arange(1, 2, 0.3, device=device), torch.arange(1, 2, 0.3))
    assert same(torch.tensor(2.5, device=device), torch.tensor(2.5))
    assert same(torch.scalar_tensor(4, device=device), torch.scalar_tensor(4))


def test_like_another(device: torch.device) -> None:
    x = torch.randn(3, 4).to(device)
    assert same(torch.zeros_like(x), torch.zeros(3, 4))
    assert same(torch.ones_like(x, dtype=torch.int32), torch.ones(3, 4, dtype=torch.int32))
    assert same(torch.full_like(x, 2), torch.full((3, 4), 2.0))
    assert same(x.new_zeros(2), torch.zeros(2))
    assert same(x.new_ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    assert same(x.new_full((2,), 5), torch.full((2,), 5.0))
    assert x.new_empty(2, 2).shape == torch.empty_like(x)[:2, :2].shape
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"
    assert torch.empty_like(x, device="meta").device.type == "meta"


@pytest.mark.parametrize("name", ["randn", "rand"])
def test_random_numbers_are_the_cpus(name: str, device: torch.device) -> None:
    torch.manual_seed(4)
    expected = getattr(torch, name)(40)
    torch.manual_seed(4)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        assert same(getattr(torch, name)(40, device=device), expected)


def test_what_only_the_cpu_makes(device: torch.device) -> None:
    with pytest.warns(UserWarning, match="runs on the CPU"):
        assert same(torch.eye(3, device=device), torch.eye(3))
    with pytest.warns(UserWarning, match="runs on the CPU"):
        assert torch.randperm(9, device=device).sum().item() == 36


def test_filling(device: torch.device) -> None:
    x = torch.randn(5, 6).to(device)
    x[1:3].zero_()
    x[:, 2] = 7
    x[0, 0] = torch.tensor(3.0)
    assert x[1:3].sum().item() == 14
    assert x[:, 2].sum().item() == 35
    assert x[0, 0].item() == 3
    assert x.zero_().sum().item() == 0


def test_there_is_one_device(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="no device webgpu:1"):
        torch.ones(3, device="webgpu:1")
    with pytest.raises(RuntimeError, match="no device webgpu:1"):
        torch.ones(3).to("webgpu:1")
    assert torch.ones(3, device="webgpu:0").device == device
