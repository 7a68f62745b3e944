# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers of stochastic rounding (docs/numerics.md, section 2).

They are a function of the seed and of an element's index alone, so that no state is kept and any
program may draw any of them. One counter gives four neighbours' numbers.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.numerics import INTERPRETED, bits_of, widen


@triton.jit
def draw(x, at, seed, pairs: tl.constexpr, tile: tl.constexpr):
    """u for the elements of a tile, float32, twice; or for the first and second numbers of pairs.

    x: what `at` belongs to, as lanes.Read has both
    at: int64, the index of each element, or of each pair counted in pairs
    seed: pointer to int64 [1], the key, or [2], the key and what is added to each index
    tile: not in pairs; tile.seeds says how many numbers the seed has
    """
    key = tl.load(seed)
    at = depending_on(at, x)
    if tile.seeds == 1 and tile.quads:  # four neighbours share a counter
        rows: tl.constexpr = tile.rows
        if pairs:
            first, _ = tl.split(tl.reshape(at, [rows, tile.columns // 4, 2]))
            a, b, c, d = random_words(first >> 1, key)
            u = unit(tl.reshape(tl.join(a, c), [rows, tile.columns // 2]))
            u_2 = unit(tl.reshape(tl.join(b, d), [rows, tile.columns // 2]))
        else:
            first, _ = tl.split(tl.reshape(at, [rows, tile.columns // 2, 2]))
            first, _ = tl.split(tl.reshape(first, [rows, tile.columns // 4, 2]))
            a, b, c, d = random_words(first >> 2, key)
            u = tl.join(tl.join(a, c), tl.join(b, d))
            u = unit(tl.reshape(u, [rows, tile.columns]))
            u_2 = u
    else:
        offset = 0
        if tile.seeds == 2:
            offset = tl.load(seed + 1)
        if pairs:
            u, u_2 = drawn_one(2 * at + offset, key), drawn_one(2 * at + 1 + offset, key)
        else:
            u = drawn_one(at + offset, key)
            u_2 = u
    return u, u_2


@triton.jit
def drawn_one(index, key):
    """The indices of elements, int64 [...] -> their u, float32 [...]."""
    a, b, c, d = random_words(index >> 2, key)
    at = (index & 3).to(tl.int32)
    return unit(tl.where(at < 2, tl.where(at == 0, a, b), tl.where(at == 2, c, d)))


@triton.jit
def depending_on(at, x):
    """`at`, which Triton is told to depend on x: so that the same threads hold both."""
    if not INTERPRETED:
        bits = x if x.dtype == tl.int32 else bits_of(widen(x))
        at = tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l,r", [at, bits], tl.int64, True, 1)
    return at


@triton.jit
def random_words(group, key):
    """Philox4x32-10 of a counter and a key, int64 [...]: four words, uint32 [...] (section 2)."""
    a, b = low_word(group), high_word(group)
    c, d = tl.zeros_like(a), tl.zeros_like(a)
    key_a, key_b = low_word(key), high_word(key)
    for _ in tl.static_range(10):
        first = a.to(tl.uint64) * 0xD2511F53  # one instruction gives both words
        second = c.to(tl.uint64) * 0xCD9E8D57
        a, b = high_word(second) ^ b ^ key_a, low_word(second)
        c, d = high_word(first) ^ d ^ key_b, low_word(first)
        key_a = low_word(key_a.to(tl.uint64) + 0x9E3779B9)
        key_b = low_word(key_b.to(tl.uint64) + 0xBB67AE85)
    return a, b, c, d


@triton.jit
def low_word(x):
    """The low half of 64 bits, uint32."""
    return (x & 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def high_word(x):
    """The high half of 64 bits, uint32."""
    return ((x >> 32) & 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def unit(word):
    """A random word, uint32 -> u, float32 in [0, 2^24)."""
    return (word >> 8).to(tl.int32).to(tl.float32)
