// SPDX-License-Identifier: BSD-3-Clause
// A format as Python made it, and the layouts of the shapes it was used with: grids of blocks of any rank
// (make_grid.cpp).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "grid.h"
#include "spec.h"

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

// A layout and what it refers to, of which the second belongs to two-level scales.
struct OwnedLayout : Layout {
    OwnedLayout(OwnedGrid grid, OwnedGrid of_scales)
        : Layout{grid.grid, of_scales.grid}, kept{std::move(grid), std::move(of_scales)} {}

    OwnedGrid kept[2];
};

class NativeFormat {
public:
    // block: (dimension, size) pairs; rest: the block's size along every other dimension, 0 for all.
    // inner: the format of scales of two levels, else null; spec.inner says the same of its element.
    NativeFormat(const Spec& spec, const std::vector<int64_t>& block, int64_t rest,
                 std::shared_ptr<NativeFormat> inner);

    const Spec& spec() const { return spec_; }
    OwnedLayout layout(const std::vector<int64_t>& shape) const;
    // The layout of a matrix whose rows stay rows, for kernels that take them one by one.
    OwnedLayout matrix(int64_t rows, int64_t columns) const;
    std::vector<int64_t> scale_shape(const std::vector<int64_t>& shape) const;

private:
    std::vector<int64_t> sizes(size_t rank) const;
    OwnedGrid grid(const std::vector<int64_t>& shape) const;

    Spec spec_;
    std::vector<int64_t> block_;
    int64_t rest_;
    std::shared_ptr<NativeFormat> inner_;
};

}  // namespace blockscale
