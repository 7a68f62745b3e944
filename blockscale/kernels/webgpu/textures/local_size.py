"""The local size of a kernel on textures, chosen by the shape of its blocks.

docs/webgpu.md has what was measured.
"""

INVOCATIONS = 64  # of a workgroup

Three = tuple[int, int, int]


def local_size(block: Three, size: Three) -> Three:
    """The local size for blocks that reach into `block` texels of a texture of `size`.

    A workgroup covers one block where it can, so that all of it uses one scale: along x first,
    whose texels are neighbours in memory, then y, then z. What is left of its invocations goes to
    blocks beside it, in the same order. Each is a power of two,
    and none is larger than what the texture needs.
    """
    sizes = [1, 1, 1]
    left = INVOCATIONS
    for bound in (block, size):
        for axis in range(3):
            while left > 1 and sizes[axis] < min(bound[axis], size[axis]):
                sizes[axis] *= 2
                left //= 2
    return sizes[0], sizes[1], sizes[2]
