// SPDX-License-Identifier: BSD-3-Clause
// How many elements the primitives take at a time, and the loop over the blocks of a row.
#pragma once

#include "../../grid.h"
#include "../../primitives.h"
#include "../../tuning.h"
#include "../simd/bits.h"
#include "../simd/stream.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kChunk = 2048;        // elements that pass through all stages while in L1
constexpr int64_t kPiece = 1024;        // elements that are read twice while in L1
constexpr int64_t kAhead = 4096;        // elements between what is read and what is asked for

// Call body(offset, length, block) for the pieces of blocks of `size` in [first, first + n).
template <class Body>
BLOCKSCALE_INLINE void for_blocks(int64_t first, int64_t n, int64_t size, Body body) {
    int64_t left = size - first % size, block = 0;
    for (int64_t i = 0; i < n; i += left, left = size, ++block)
        body(i, left < n - i ? left : n - i, block);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
