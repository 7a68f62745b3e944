# SPDX-License-Identifier: BSD-3-Clause
"""Scales of numbers in textures are those of the same numbers in buffers, windows or not."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu import device
from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives.choose import choose
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.source import InTexture, read, seen, sizes
from blockscale.kernels.webgpu.textures.storage import texture


@pytest.mark.parametrize("fmt", ["int8:group8:fp32", "int8:block2x3x5:fp32", "e4m3:tensor:fp32"])
@pytest.mark.parametrize("shape", [(4, 6, 16), (3, 5, 7)], ids=str)
def test_textures_are_read_as_buffers_are(fmt: str, shape: tuple[int, ...]) -> None:
    f = form(fmt)
    torch.manual_seed(4)
    x = torch.randn(shape)
    blocks = tuple(f.scale_shape(shape))
    found = [
        download(choose(f, source, x.dtype, shape).scale, blocks, torch.float32)
        for source in (upload(x), InTexture(texture(x).texels, shape[-1], shape[-2]))
    ]
    assert torch.equal(*found)


def test_a_texture_is_seen_at_once_and_a_buffer_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.Gpu, "binding_limit", 1 << 18)
    there, count = InTexture(texture(torch.ones(2, 3)).texels, 3, 2), 100_000
    buffer = upload(torch.ones(count))
    assert [piece.count for piece, _ in seen(there, count, 32)] == [count]
    assert [piece.count for piece, _ in seen(buffer, count, 32)] == [1 << 16, count - (1 << 16)]
    assert read(there, torch.float32).load == "texture"
    assert read(buffer, torch.float32).load == "words"
    assert (sizes(there), sizes(buffer)) == ({"width": 3, "height": 2}, {})
