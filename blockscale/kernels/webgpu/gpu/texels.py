# SPDX-License-Identifier: BSD-3-Clause
"""Memory of the device as 3-D textures: texels of four unsigned components of 8, 16 or 32 bits."""

from typing import Any

from blockscale.kernels.webgpu.gpu.device import GpuError, gpu

AXIS = "max-texture-dimension-3d"
COMPONENTS = 4  # of a texel


class Texels:
    """A 3-D texture. `size` counts texels along x, y and z; `bits` are those of a component."""

    __slots__ = ("bits", "size", "texture", "view")

    def __init__(self, texture: Any, size: tuple[int, int, int], bits: int):
        self.texture, self.size, self.bits = texture, size, bits
        self.view = texture.create_view()

    @property
    def nbytes(self) -> int:
        """Bytes of all texels."""
        x, y, z = self.size
        return x * y * z * COMPONENTS * self.bits // 8


def texels(size: tuple[int, int, int], bits: int) -> Texels:
    """A texture of zeros, each size at least 1.

    Raises GpuError if the device has none as large, or no memory for it.
    """
    import wgpu

    device = gpu()
    limit = device.limits[AXIS]
    if max(size) > limit:
        raise GpuError(
            f"{device.name} has 3-D textures of at most {limit} texels along each axis ({AXIS}), "
            f"and {' x '.join(map(str, size))} are needed: keep such a tensor in a buffer"
        )
    usage = wgpu.TextureUsage
    with device.telling(f"allocating a texture of {' x '.join(map(str, size))} texels"):
        texture = device.device.create_texture(
            size=size,
            dimension="3d",
            format=f"rgba{bits}uint",
            usage=usage.TEXTURE_BINDING | usage.STORAGE_BINDING,
        )
        return Texels(texture, size, bits)
