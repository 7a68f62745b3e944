// Which elements share a scale: a contiguous tensor seen as [planes, rows, columns] in blocks.
#pragma once

#include <cstdint>

namespace blockscale {

// A block spans `block_planes` x `block_rows` x `block_columns` elements; `block_planes` is 1 or
// all of them. The last blocks along rows and columns may be partial (docs/numerics.md, 1.2).
// The stored scale is [scale_planes(), scale_rows(), scale_columns()], contiguous.
struct Grid {
    int64_t planes, rows, columns;
    int64_t block_planes, block_rows, block_columns;

    int64_t scale_planes() const { return block_planes == planes ? 1 : planes; }
    int64_t scale_rows() const { return (rows + block_rows - 1) / block_rows; }
    int64_t scale_columns() const { return (columns + block_columns - 1) / block_columns; }
    int64_t blocks() const { return scale_planes() * scale_rows() * scale_columns(); }
    int64_t size() const { return planes * rows * columns; }
};

// The blocks of a tensor; for two-level scales also those of the scale tensor itself.
struct Layout {
    Grid grid, inner;
};

// `shape` in blocks of `sizes` (0: the whole dimension) as a grid: neighbouring dimensions that
// blocks treat alike are one. Every block of the grammar needs at most three. A row of the grid may
// be several rows of the tensor, so packing needs rows whose codes fill whole bytes.
Grid make_grid(const int64_t* shape, const int64_t* sizes, int rank);

}  // namespace blockscale
