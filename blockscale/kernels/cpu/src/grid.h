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

// What stands for the blocks of scales that have no scale of their own.
constexpr Grid kNoBlocks{.planes = 1, .rows = 1, .columns = 0,
                         .block_planes = 1, .block_rows = 1, .block_columns = 1};

// `size` numbers in a row that share one scale.
constexpr Grid one_block(int64_t size) {
    return {.planes = 1, .rows = 1, .columns = size,
            .block_planes = 1, .block_rows = 1, .block_columns = size};
}

// The blocks of a tensor; for two-level scales also those of the scale tensor itself.
struct Layout {
    Grid grid, inner;
};

// `shape` in blocks of `sizes` (0: the whole dimension) as a grid: neighbouring dimensions that
// blocks treat alike are one. Every block of the grammar needs at most three. A row of the grid may
// be several rows of the tensor, so packing needs rows whose codes fill whole bytes.
Grid make_grid(const int64_t* shape, const int64_t* sizes, int rank);

}  // namespace blockscale
