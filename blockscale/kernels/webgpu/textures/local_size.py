# SPDX-License-Identifier: BSD-3-Clause
"""The local size of a kernel on textures, chosen by the shape of its blocks (docs/webgpu.md)."""

INVOCATIONS = 256  # of a workgroup, which every device has
_ROW = 16  # texels along x, at least: neighbours in memory, which lanes read together
_LONGEST = 128  # along x

Three = tuple[int, int, int]


def local_size(block: Three, size: Three) -> Three:
    """The local size for blocks that reach into `block` texels of a texture of `size`.

    A workgroup takes a row of 16 texels, or of as many as a block has, then as much of the block as
    it can, along y, then z, so that its invocations use the same scales; what is left goes to
    blocks beside it, along x first. Each is a power of two, and none is larger than needed.
    """
    first = (min(max(block[0], _ROW), _LONGEST), block[1], block[2])
    sizes = [1, 1, 1]
    left = INVOCATIONS
    for bound in (first, (min(size[0], _LONGEST), size[1], min(size[2], 64))):
        for axis in range(3):
            while left > 1 and sizes[axis] < min(bound[axis], size[axis], 64 if axis == 2 else 256):
                sizes[axis] *= 2
                left //= 2
    return sizes[0], sizes[1], sizes[2]
