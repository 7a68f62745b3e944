# SPDX-License-Identifier: BSD-3-Clause
"""Views share memory; what they are is what torch says on the CPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.views import as_meta

CUTS: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.view(6, 20), lambda t: t.reshape(-1), lambda t: t.transpose(0, 2),
    lambda t: t.permute(2, 0, 1), lambda t: t[1], lambda t: t[:, 1:3], lambda t: t[..., ::2],
    lambda t: t.unsqueeze(1), lambda t: t[:1].squeeze(0), lambda t: t[:1].expand(7, 6, 5),
    lambda t: t.diagonal(0, 0, 1), lambda t: t.unfold(1, 2, 3), lambda t: t.flatten(1),
    lambda t: t.narrow(1, 2, 3), lambda t: t.as_strided((3, 2), (2, 9), 4), lambda t: t.detach(),
    lambda t: t.view(torch.int32), lambda t: t.view(torch.uint8), lambda t: t.movedim(0, 2),
    lambda t: t[2:].split(2, 1)[1], lambda t: t.chunk(2, 2)[1], lambda t: t.unbind(1)[3],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CUTS)))
def test_views(number: int, device: torch.device) -> None:
    x, cut = torch.randn(4, 6, 5), CUTS[number]
    on = x.to(device)
    found, expected = cut(on), cut(x)
    assert isinstance(found, WebGPUTensor)
    assert found.memory is on.memory  # type: ignore[attr-defined]
    assert (found.shape, found.stride(), found.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )
    assert found.storage_offset() == expected.storage_offset()
    assert torch.equal(found.cpu(), expected)


def test_a_view_sees_what_is_written(device: torch.device) -> None:
    on = torch.zeros(4, 6, device=device)
    view = on.T[2:4]
    on.fill_(3)
    assert view.sum().item() == 24
    view.zero_()
    assert on.sum().item() == 48


def test_gradients_go_through_views(device: torch.device) -> None:
    on = torch.ones(4, 6, device=device, requires_grad=True)
    (on.T[1:3].reshape(-1) * 2).sum().backward()
    expected = torch.zeros(4, 6)
    expected[:, 1:3] = 2
    assert on.grad is not None
    assert torch.equal(on.grad.cpu(), expected)


def test_views_that_cannot_be(device: torch.device) -> None:
    on = torch.ones(4, 6, device=device)
    with pytest.raises(RuntimeError):
        on.T.view(24)
    with pytest.raises(RuntimeError):
        on.view(5, 5)


def test_as_meta() -> None:
    x = torch.randn(4, 6)[1:, ::2].T
    found = as_meta(x)
    assert (found.shape, found.stride(), found.storage_offset()) == (
        x.shape,
        x.stride(),
        x.storage_offset(),
    )
    assert as_meta(torch.empty(3, 0)).shape == (3, 0)
