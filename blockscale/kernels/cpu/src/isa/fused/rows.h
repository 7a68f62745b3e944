// SPDX-License-Identifier: BSD-3-Clause
// Rows of an operand as floats, and rows of a result as codes, through the primitives.
#pragma once

#include "../../fused/fused.h"
#include "../primitives/plan.h"

namespace blockscale::BLOCKSCALE_ISA {

const Primitives& primitives();

namespace {

inline int64_t scale_bytes(ScaleKind kind) {
    switch (kind) {
        case ScaleKind::fp32:
        case ScaleKind::pow2: return 4;
        case ScaleKind::fp16:
        case ScaleKind::bf16: return 2;
        case ScaleKind::e8m0:
        case ScaleKind::two_level: return 1;
    }
    __builtin_unreachable();
}

inline void* moved(void* from, int64_t bytes) {
    return from ? static_cast<char*>(from) + bytes : nullptr;
}

// The scales from row `row` on.
inline QParams parts_at(const Rows& r, int64_t columns, int64_t row) {
    if (r.block == 0) return r.parts;
    int64_t first = row * ceil_div(columns, r.block);
    int64_t offset = r.spec->offset == Stored::fp32 ? 4 : 2;
    bool halves = r.spec->zero == Stored::fp16 || r.spec->zero == Stored::bf16;
    return {moved(r.parts.scale, first * scale_bytes(r.spec->scale)), r.parts.outer,
            moved(r.parts.zero_point, first * (halves ? 2 : 4)), moved(r.parts.offset, first * offset)};
}

inline Layout layout_of(const Rows& r, int64_t rows, int64_t columns) {
    if (r.block == 0) return {one_block(rows * columns), kNoBlocks};
    return {{.planes = 1, .rows = rows, .columns = columns,
             .block_planes = 1, .block_rows = 1, .block_columns = r.block}, kNoBlocks};
}

// Rows [row, row + count) as floats: where they lie, or decoded into `buffer`.
inline const float* read_rows(const Rows& r, int64_t columns, int64_t row, int64_t count,
                              float* buffer) {
    if (!r.spec) return static_cast<const float*>(r.data) + row * columns;
    const void* codes = moved(r.data, row * r.spec->row_bytes(columns));
    primitives().dequantize(*r.spec, layout_of(r, count, columns), codes, true,
                            parts_at(r, columns, row), buffer, Dtype::fp32, 1);
    return buffer;
}

// The codes of rows [row, row + count) of a result, whose floats are `values`.
inline void write_codes(const Result& to, int64_t columns, int64_t row, int64_t count,
                        const float* values) {
    const Rows& r = to.codes;
    if (!r.data) return;
    auto run = to.given ? primitives().quantize : primitives().choose_quantize;
    run(*r.spec, layout_of(r, count, columns), values, Dtype::fp32, parts_at(r, columns, row),
        moved(r.data, row * r.spec->row_bytes(columns)), true, {}, 1);
}

// Call body(row, count) for so many rows at a time as stay in the cache.
template <class Body>
void for_row_units(int64_t rows, int64_t columns, int threads, Body body) {
    int64_t height = larger(1, chosen(Choice::unit_elements) / larger(columns, 1));
    for_units(ceil_div(rows, height), threads, rows * columns >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        int64_t row = unit * height;
        body(row, smaller(height, rows - row));
    });
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
