# SPDX-License-Identifier: BSD-3-Clause
"""Memory on the device: taken from a pool, filled from tensors and read back into them."""

from math import prod
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.device import Gpu, GpuError, gpu

_SMALL = 1 << 16  # up to here a pooled buffer has a power of two of bytes, above a multiple of it
_KEPT = 8  # free buffers of one size that are kept


class Memory:
    """Bytes on the device. Its buffer goes back to the pool when nobody refers to it."""

    __slots__ = ("__weakref__", "buffer", "nbytes")

    def __init__(self, buffer: Any, nbytes: int):
        self.buffer, self.nbytes = buffer, nbytes
        # Not __del__: the collector of cycles would destroy the buffer together with its owner.
        finalize(self, _give_back, buffer).atexit = False


_free: dict[int, list[Any]] = {}


def allocate(nbytes: int) -> Memory:
    """Memory of at least `nbytes`, its content undefined. Raises GpuError if there is none."""
    size = _rounded(nbytes)
    free = _free.get(size)
    return Memory(free.pop() if free else _create(size), nbytes)


def zeros(nbytes: int) -> Memory:
    """Memory of zeros."""
    memory = allocate(nbytes)
    with gpu().encoder() as encoder:
        encoder.clear_buffer(memory.buffer, 0, memory.buffer.size)
    return memory


def upload(tensor: Tensor) -> Memory:
    """The bytes of a tensor on the CPU, in row-major order, in memory on the device."""
    device = gpu()
    memory = allocate(tensor.nbytes)
    if tensor.nbytes:
        _write(device, memory, _bytes(tensor.detach().contiguous()))
    return memory


def _write(device: Gpu, memory: Memory, data: Tensor) -> None:
    """Fill memory with bytes [n]; the device takes multiples of four."""
    device.flush()  # what was recorded before may still read what a pooled buffer held
    whole = data.numel() // 4 * 4
    with device.explain_errors(f"uploading {data.numel()} bytes"):
        if whole:
            device.device.queue.write_buffer(memory.buffer, 0, data[:whole].numpy())
        if whole < data.numel():
            rest = torch.zeros(4, dtype=torch.uint8)
            rest[: data.numel() - whole] = data[whole:]
            device.device.queue.write_buffer(memory.buffer, whole, rest.numpy())


def download(memory: Memory, shape: tuple[int, ...], dtype: torch.dtype, start: int = 0) -> Tensor:
    """A tensor on the CPU made of the bytes from `start`, which is a multiple of four."""
    device = gpu()
    device.flush()
    nbytes = prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    with device.explain_errors(f"reading back {nbytes} bytes"):
        result = device.device.queue.read_buffer(memory.buffer, start, -(-nbytes // 4) * 4)
    data = torch.frombuffer(bytearray(result), dtype=torch.uint8)[:nbytes]
    return data.view(dtype).view(shape)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _rounded(nbytes: int) -> int:
    """The size of the buffer that holds `nbytes`: one of few, so that buffers are used again."""
    if nbytes <= _SMALL:
        return max(256, 1 << (nbytes - 1).bit_length()) if nbytes else 256
    return -(-nbytes // _SMALL) * _SMALL


def _create(size: int) -> Any:
    import wgpu

    device = gpu()
    limit = device.limits["max-buffer-size"]
    if size > limit:
        raise GpuError(
            f"{device.name} has buffers of at most {limit} bytes (max-buffer-size), and {size} are "
            f"needed: work on smaller pieces"
        )
    usage = wgpu.BufferUsage
    with device.explain_errors(f"allocating {size} bytes"):
        return device.device.create_buffer(
            size=size, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST | usage.UNIFORM
        )


def _give_back(buffer: Any) -> None:
    free = _free.setdefault(buffer.size, [])
    if len(free) < _KEPT:
        free.append(buffer)


def release() -> None:
    """Give the pool's free buffers back to the system."""
    _free.clear()


# Memory of the device as 3-D textures: texels of four unsigned components of 8, 16 or 32 bits.

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
    with device.explain_errors(f"allocating a texture of {' x '.join(map(str, size))} texels"):
        texture = device.device.create_texture(
            size=size,
            dimension="3d",
            format=f"rgba{bits}uint",
            usage=usage.TEXTURE_BINDING | usage.STORAGE_BINDING,
        )
        return Texels(texture, size, bits)
