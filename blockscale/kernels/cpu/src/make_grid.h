// From a tensor of any rank in blocks of any sizes to a grid.
#pragma once

#include <vector>

#include "grid.h"

namespace blockscale {

// A grid and what it refers to; it may be moved, but not copied.
struct OwnedGrid {
    OwnedGrid() = default;
    OwnedGrid(OwnedGrid&&) = default;

    Grid grid = kNoBlocks;
    std::vector<Dimension> outer;
    std::vector<int32_t> block_of_column;
    std::vector<Interleaved> interleaved;  // one or none: it stays where it is when this moves
};

// `shape` in blocks of `sizes` (0: the whole dimension) as a grid: neighbouring dimensions that
// blocks treat alike are one. A row of the grid may be several rows of the tensor, so packing needs
// rows whose codes fill whole bytes.
OwnedGrid make_grid(const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes);

}  // namespace blockscale
