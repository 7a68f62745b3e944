// SPDX-License-Identifier: BSD-3-Clause
#include "native_format.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace blockscale {

namespace {

constexpr int64_t kShort = 400;       // rows of fewer columns are lengthened where blocks allow
constexpr int64_t kShortest = 64;     // below this even where a grid needs nothing else
constexpr int64_t kLongest = 8192;    // columns of a strip of interleaved blocks
constexpr int64_t kElements = 16384;  // of a unit, roughly (unit_elements of tuning.h, without a measurement)
constexpr int64_t kVector = 16;       // blocks of fewer columns cost more than scales of single ones

using Dimensions = std::vector<Dimension>;  // outermost first

// The dimensions of more than one entry, with their blocks.
Dimensions listed(const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes) {
    Dimensions all;
    all.reserve(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) {
        int64_t size = shape[i], block = sizes[i] == 0 ? size : std::min(sizes[i], size);
        if (size != 1) all.push_back({size, block});
    }
    return all;
}

// As blockscale/kernels/blocks.py says.
bool joins(const Dimension& outer, const Dimension& inner) {
    return inner.block == inner.size || (outer.block == 1 && inner.size % inner.block == 0);
}

// Neighbours that blocks do not tell apart as one dimension.
Dimensions merged(const Dimensions& all) {
    Dimensions found;  // innermost first
    for (size_t i = all.size(); i-- > 0;) {
        if (!found.empty() && joins(all[i], found.back())) {
            Dimension& inner = found.back();
            if (inner.block == inner.size) inner.block *= all[i].block;
            inner.size *= all[i].size;
        } else {
            found.push_back(all[i]);
        }
    }
    std::reverse(found.begin(), found.end());
    return found;
}

// Whether registers hold too few columns that share a scale (wide_serves of isa/primitives/wide.h).
bool narrow(int64_t block) { return block > 1 && block < kVector && block != kVector / 2; }

// Three dimensions without anything beside them, if that is enough: neighbours of whole blocks, or of
// blocks of single entries, are one, and no block has several planes but not all. Such a grid is made
// at every call of most formats, so this asks for no memory.
bool plain(const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes, Grid& to) {
    Dimension found[3] = {{1, 1}, {1, 1}, {1, 1}};  // innermost first
    int used = 0;
    for (size_t i = shape.size(); i-- > 0;) {
        int64_t size = shape[i], block = sizes[i] == 0 ? size : std::min(sizes[i], size);
        if (size == 1) continue;
        Dimension* inner = used ? found + used - 1 : nullptr;
        if (inner && block == size && inner->block == inner->size) {
            inner->block *= size, inner->size *= size;
        } else if (inner && block == 1 && inner->block == 1) {
            inner->size *= size;
        } else if (used == 3) {
            return false;
        } else {
            found[used++] = {size, block};
        }
    }
    auto [columns, rows, planes] = found;
    to = {planes.size, rows.size, columns.size, planes.block, rows.block, columns.block};
    bool own_row = rows.block == 1 && planes.block == 1;
    bool slow = !own_row && (columns.size < kShortest || narrow(columns.block));
    return !slow && (planes.block == 1 || planes.block == planes.size);
}

// The last dimensions of `all`, `count` of them, as the columns of a grid.
struct Columns {
    Columns(const Dimensions& all, size_t count) : dims(all.end() - count, all.end()) {
        for (const Dimension& each : dims) size *= each.size;
        for (size_t i = 1; i < count; ++i) period_blocks *= dims[i].count();
        period = dims[0].block * (size / dims[0].size);
        step = std::min(size, std::lcm(period, int64_t{8}));  // strips begin on whole bytes
    }

    Dimensions dims;
    int64_t size = 1, period_blocks = 1, period, step;
};

// Short rows of the tensor are taken together, as long as all of their blocks are few.
Columns columns_of(const Dimensions& all) {
    Columns found(all, 1);
    int64_t enough = all.back().block == 1 ? kShort / 4 : kShort;
    for (size_t count = 2; count <= all.size() && found.size < enough; ++count) {
        Columns more(all, count);
        if (more.step > kLongest) break;
        found = more;
    }
    return found;
}

// The scale of each column of a strip.
void interleave(const Columns& columns, int64_t height, GridParts& to, Grid& grid) {
    int64_t wanted = std::clamp<int64_t>(kElements / height, 1024, kLongest);
    int64_t strip = std::min(columns.size, std::max<int64_t>(wanted / columns.step, 1) * columns.step);
    const Dimension& last = columns.dims.back();
    bool whole = columns.dims.size() > 1 && last.size % last.block == 0;
    int64_t run = whole && !narrow(last.block) ? last.block : 1;
    to.block_of_column.resize((strip + run - 1) / run);
    for (size_t i = 0; i < to.block_of_column.size(); ++i) {
        int64_t block = 0, left = i * run, step = 1;
        for (size_t d = columns.dims.size(); d-- > 0;) {
            const Dimension& each = columns.dims[d];
            block += (d ? left % each.size : left) / each.block * step;
            left /= each.size, step *= each.count();
        }
        to.block_of_column[i] = static_cast<int32_t>(block);
    }
    int64_t blocks = (strip + columns.period - 1) / columns.period * columns.period_blocks;
    to.interleaved = {.block = to.block_of_column.data(), .strip = strip, .blocks = blocks,
                      .each = run, .line = columns.dims.size() > 1 ? last.size : strip,
                      .run = last.block};
    grid.interleaved = &to.interleaved;
    grid.period_blocks = columns.period_blocks;
}

OwnedGrid general(Dimensions all) {
    Columns columns = columns_of(all);
    all.resize(all.size() - columns.dims.size());
    Dimension rows{1, 1};
    if (!all.empty()) {
        rows = all.back();
        all.pop_back();
    }
    OwnedGrid made{.grid = kNoBlocks, .parts = std::make_unique<GridParts>()};
    GridParts& parts = *made.parts;
    Grid& g = made.grid;
    g = {1, rows.size, columns.size, 1, rows.block, columns.period};
    for (const Dimension& each : all) {
        g.planes *= each.size;
        g.block_planes *= each.block;
    }
    g.outers = static_cast<int>(all.size());
    parts.outer = std::move(all);
    g.outer = g.outers ? parts.outer.data() : nullptr;
    if (columns.dims.size() > 1 || narrow(columns.period))
        interleave(columns, g.block_planes * g.block_rows, parts, g);
    return made;
}

}  // namespace

OwnedGrid make_grid(const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes) {
    OwnedGrid made;  // without blocks where there are no elements
    if (plain(shape, sizes, made.grid)) return made;
    for (int64_t size : shape)
        if (size == 0) return OwnedGrid();
    return general(merged(listed(shape, sizes)));
}

}  // namespace blockscale
