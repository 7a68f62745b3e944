// SPDX-License-Identifier: BSD-3-Clause
// Which elements of a tensor share a scale: a contiguous tensor seen as [planes, rows, columns] in blocks.
#pragma once

#include <cstdint>

namespace blockscale {

// One dimension of many: its size and that of its blocks, of which the last may be partial.
struct Dimension {
    int64_t size, block;

    int64_t count() const { return (size + block - 1) / block; }
};

// Columns that are several dimensions of the tensor in one, whose blocks lie interleaved. They are cut
// into strips of `strip` columns with `blocks` scales each, all of them cut alike (the last one is a
// part of the others).
struct Interleaved {
    const int32_t* block;  // [strip / each]: the scales of so many columns, from the strip's first on
    int64_t strip, blocks, each;
    int64_t line, run;     // blocks within a strip are runs of so many columns in lines of so many
};

// A block spans `block_planes` x `block_rows` x `block_columns` elements. Planes may be several
// dimensions, `outer`; without them `block_planes` is 1 or all of them. The last blocks may be partial
// (docs/numerics.md, 1.2). The stored scale is [scale_planes(), scale_rows(), scale_columns()],
// contiguous. With `interleaved` columns, `block_columns` are those of `period_blocks` blocks together.
struct Grid {
    int64_t planes, rows, columns;
    int64_t block_planes, block_rows, block_columns;
    const Dimension* outer = nullptr;  // outermost first; whoever made the grid keeps them
    int outers = 0;
    const Interleaved* interleaved = nullptr;
    int64_t period_blocks = 1;

    int64_t scale_planes() const {
        if (!outer) return block_planes == planes ? 1 : planes;
        int64_t found = 1;
        for (int i = 0; i < outers; ++i) found *= outer[i].count();
        return found;
    }
    int64_t scale_rows() const { return (rows + block_rows - 1) / block_rows; }
    int64_t scale_columns() const {
        return (columns + block_columns - 1) / block_columns * period_blocks;
    }
    int64_t blocks() const { return scale_planes() * scale_rows() * scale_columns(); }
    int64_t size() const { return planes * rows * columns; }

    // The plane of the scale that a plane's blocks have.
    int64_t scale_plane(int64_t plane) const {
        if (!outer) return block_planes == planes ? 0 : plane;
        int64_t found = 0, step = 1;
        for (int i = outers - 1; i >= 0; --i) {
            found += plane % outer[i].size / outer[i].block * step;
            plane /= outer[i].size, step *= outer[i].count();
        }
        return found;
    }

    // The first plane whose blocks have this plane of the scale.
    int64_t first_plane(int64_t scale_plane) const {
        if (!outer) return block_planes == planes ? 0 : scale_plane;
        int64_t found = 0, step = 1;
        for (int i = outers - 1; i >= 0; --i) {
            found += scale_plane % outer[i].count() * outer[i].block * step;
            scale_plane /= outer[i].count(), step *= outer[i].size;
        }
        return found;
    }

    // The column of the scale that a column's blocks have.
    int64_t scale_column(int64_t column) const {
        if (!interleaved) return column / block_columns;
        const Interleaved& in = *interleaved;
        return column / in.strip * in.blocks + in.block[column % in.strip / in.each];
    }
};

// Call body(plane) for all planes that share their scales with plane `first`, the first of them.
template <class Body>
inline void for_planes(const Grid& g, int64_t first, Body body) {
    if (!g.outer) {
        int64_t end = first + (g.block_planes == g.planes ? g.planes : 1);
        for (int64_t plane = first; plane < end; ++plane) body(plane);
        return;
    }
    for (int64_t j = 0;; ++j) {
        int64_t plane = first, left = first, rest = j, step = 1;
        for (int i = g.outers - 1; i >= 0; --i) {
            int64_t at = left % g.outer[i].size, room = g.outer[i].size - at;
            int64_t extent = g.outer[i].block < room ? g.outer[i].block : room;
            plane += rest % extent * step;
            rest /= extent, left /= g.outer[i].size, step *= g.outer[i].size;
        }
        if (rest) return;  // j counts beyond the last one
        body(plane);
    }
}

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

}  // namespace blockscale
