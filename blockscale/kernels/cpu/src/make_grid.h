// SPDX-License-Identifier: BSD-3-Clause
// From a tensor of any rank in blocks of any sizes to a grid.
#pragma once

#include <memory>
#include <vector>

#include "grid.h"

namespace blockscale {

// What a grid refers to.
struct GridParts {
    std::vector<Dimension> outer;
    std::vector<int32_t> block_of_column;
    Interleaved interleaved;
};

// A grid and what it refers to, null for most.
struct OwnedGrid {
    Grid grid = kNoBlocks;
    std::unique_ptr<GridParts> parts;
};

// `shape` in blocks of `sizes` (0: the whole dimension) as a grid: neighbouring dimensions that
// blocks treat alike are one. A row of the grid may be several rows of the tensor, so packing needs
// rows whose codes fill whole bytes.
OwnedGrid make_grid(const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes);

}  // namespace blockscale
