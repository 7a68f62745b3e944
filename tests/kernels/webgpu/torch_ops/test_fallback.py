# SPDX-License-Identifier: BSD-3-Clause
"""What the device lacks runs on the CPU: rightly, and with one warning an op."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels import registry
from blockscale.kernels.registry import KERNELS
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.fallback import as_meta, reference_on_cpu
from blockscale.ops.fused import FUSED
from blockscale.ops.op import OPS
from docs.pages import webgpu as table
from tests.kernels.webgpu.torch_ops.numbers import same


def test_one_warning_an_op(device: torch.device) -> None:
    x = torch.randn(5).to(device)
    with pytest.warns(UserWarning, match=r"no kernel for aten\.cumsum\.default of float32"):
        found = x.cumsum(0)
    assert same(found, x.cpu().cumsum(0))
    with warnings.catch_warnings(action="error"):
        x.cumsum(0)


def test_the_warning_points_to_who_called(device: torch.device) -> None:
    with pytest.warns(UserWarning) as caught:
        torch.ones(3, device=device).cumsum(0)
    assert caught[0].filename == __file__


def test_results_of_several_tensors(device: torch.device) -> None:
    x = torch.randn(4, 9)
    with pytest.warns(UserWarning, match="topk"):
        values, indices = x.to(device).topk(3)
    assert same(values, x.topk(3)[0])
    assert same(indices, x.topk(3)[1])
    assert indices.device == device


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_dtypes_that_wgsl_lacks(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.arange(6).to(dtype)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        found = (x.to(device) + x.to(device)) * 3
    assert found.dtype == dtype
    assert found.device == device
    assert torch.equal(found.cpu(), x * 6)


def test_ops_that_write(device: torch.device) -> None:
    x = torch.randn(3, 5)
    on = x.to(device)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        on[:, 1:4].cumsum_(0)
    x[:, 1:4] = x[:, 1:4].cumsum(0)
    assert same(on, x)
    out = torch.empty(0, device=device)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        torch.cumsum(on, 0, out=out)
    assert same(out, x.cumsum(0))


def test_lists_of_tensors(device: torch.device) -> None:
    on = [torch.ones(3, device=device), torch.ones(2, 2, device=device)]
    with pytest.warns(UserWarning, match="_foreach_add_"):
        torch._foreach_add_(on, 2.0)
    assert [x.sum().item() for x in on] == [9, 12]


def test_what_is_asked_for_warns_of_nothing(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    assert torch.equal(x, x)
    assert torch.allclose(x, x + 1e-9)
    assert x[0].item() == 1
    assert bool(x[0])


def test_without_gradients_ops_are_taken_apart(device: torch.device) -> None:
    layer = torch.nn.Linear(6, 3)
    x = torch.randn(2, 6)
    with torch.inference_mode():
        expected = layer(x)
        found = torch.nn.Linear.forward(layer.to(device), x.to(device))
    torch.testing.assert_close(found.cpu(), expected)


def test_our_ops_run_their_reference_on_the_cpu(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 64)
    expected = bs.quantize(x, "mxfp4")
    for op in ("choose_quantize", "dequantize"):
        monkeypatch.setitem(KERNELS, (op, "webgpu"), [])
    monkeypatch.setattr(registry, "_settled", {})
    monkeypatch.setattr(registry, "_warned", set())
    with pytest.warns(UserWarning, match="no webgpu kernel runs choose_quantize"):
        q = bs.quantize(x.to(device), "mxfp4")
    assert q.device == device
    assert torch.equal(q.packed.cpu(), expected.packed)
    with pytest.warns(UserWarning, match="no webgpu kernel runs dequantize"):
        assert same(q.dequantize(), expected.dequantize())


def test_the_reference_by_name(device: torch.device) -> None:
    x = torch.randn(4, 64)
    with bs.use("reference"):
        found = bs.fake_quantize(x.to(device), "int4:group32:fp32")
        assert same(found, bs.fake_quantize(x, "int4:group32:fp32"))
    assert found.device == device


def test_a_reference_sees_the_cpu(device: torch.device) -> None:
    seen = []

    def reference(x: torch.Tensor, others: list[torch.Tensor | None]) -> list[torch.Tensor]:
        seen.extend([x.device.type, others[0].device.type])  # type: ignore[union-attr]
        return [x + 1]

    on = torch.ones(3, device=device)
    found = reference_on_cpu(reference, (on, [on, None]))
    assert seen == ["cpu", "cpu"]
    assert same(found[0], torch.full((3,), 2.0))


def test_fused_ops_are_composed_on_the_device(device: torch.device) -> None:
    """As docs/webgpu.md says: warnings are errors here, so nothing of them runs on the CPU."""
    x = torch.randn(4, 64)
    by = Quantizer(None, None, None, str(parse("mxfp4")), None)
    found = FUSED["relu"](Value(x.to(device)), dtype=torch.float32, y=by)
    with bs.use("reference"):
        expected = FUSED["relu"](Value(x), dtype=torch.float32, y=by)
    assert [each.device for each in found] == [device] * len(expected)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_the_table_of_the_documentation_is_true() -> None:
    files = table.kernels()
    assert {"conv", "linear"} <= OPS.keys()
    for name in OPS:
        runs = registry.supporting(name, "webgpu", (str(parse("mxfp4")),), ()) is not None
        assert runs == (name in files), name


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
