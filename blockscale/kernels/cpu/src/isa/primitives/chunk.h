// SPDX-License-Identifier: BSD-3-Clause
// One chunk of a row through its stages, each a plain loop over memory that stays in L1:
// widen -> count in steps -> codes or values -> pack or scale -> narrow -> memory.
#pragma once

#include "decode.h"
#include "encode.h"
#include "pack.h"
#include "philox.h"
#include "scales.h"
#include "statistics.h"
#include "wide.h"
#include "wide_decode.h"
#include "wide_table.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

struct Times {
    static float of(float a, float b) { return a * b; }
};
struct Over {
    static float of(float a, float b) { return a / b; }
};
struct Plus {
    static float of(float a, float b) { return a + b; }
};
struct Minus {
    static float of(float a, float b) { return a - b; }
};

template <class Op, int N>
inline void apply_blocks(const float* x, int64_t blocks, const float* by, float* __restrict y) {
    for (int64_t b = 0; b < blocks; ++b)
        for (int i = 0; i < N; ++i) y[b * N + i] = Op::of(x[b * N + i], by[b]);
}

// y = x op by[block of each element], for n elements that start at `column`.
template <class Op>
inline void apply(const float* x, int64_t column, int64_t n, int64_t size, const float* by,
                  float* __restrict y) {
    if (size == 1) {
        for (int64_t i = 0; i < n; ++i) y[i] = Op::of(x[i], by[i]);
        return;
    }
    if (size < 16) {
        alignas(64) float each[kChunk];
        for_blocks(column, n, size, [&](int64_t i, int64_t length, int64_t block) {
            for (int64_t k = i; k < i + length; ++k) each[k] = by[block];
        });
        for (int64_t i = 0; i < n; ++i) y[i] = Op::of(x[i], each[i]);
        return;
    }
    if (column % size == 0 && (size == 16 || size == 32)) {
        int64_t blocks = n / size;
        size == 16 ? apply_blocks<Op, 16>(x, blocks, by, y) : apply_blocks<Op, 32>(x, blocks, by, y);
        int64_t done = blocks * size;
        for (int64_t i = done; i < n; ++i) y[i] = Op::of(x[i], by[blocks]);
        return;
    }
    for_blocks(column, n, size, [&](int64_t i, int64_t length, int64_t block) {
        float factor = by[block];
        for (int64_t k = i; k < i + length; ++k) y[k] = Op::of(x[k], factor);
    });
}

// What the blocks of a rectangle are scaled by; entry 0 belongs to its first column.
struct BlockScales {
    float* steps;
    Factors factors;
    float* zero_points;    // null unless asym
    float* offsets;        // null without
};

// What a primitive makes of its elements.
enum class Job { codes, values, masked, dequantized };

struct Task {
    const Spec& spec;
    Grid grid;
    Job job;
    const void* x;  // floats; packed codes for `dequantized`
    Dtype dtype;    // of x, or of the output of `dequantized`
    void* to;
    bool packed = false;  // codes lie packed, not one to an entry
    bool stream = false;  // the output goes around the caches
    Seed seed = {};
    const void* gradient = nullptr;  // of `masked`
    Dtype gradient_dtype = Dtype::fp32;
    int64_t ahead = 0;     // elements to those that are asked for: the next unit's, or kAhead
    bool finite = false;   // x holds no NaN, and its scales are chosen from it
    const CodeTable* table = nullptr;  // if it serves
    bool of_words = false;             // and CodeTable::serves_bits
};

struct Chunk {
    int64_t first;   // index of its first element in the tensor
    int64_t column;  // in the grid
    int64_t n;
};

inline const float* expand_zero_points(const Grid& g, const float* zero_points, const Chunk& c,
                                       float* z) {
    if (!zero_points) return nullptr;
    if (g.block_columns == 1) return zero_points;
    for_blocks(c.column, c.n, g.block_columns, [&](int64_t i, int64_t length, int64_t block) {
        float value = zero_points[block];
        for (int64_t k = i; k < i + length; ++k) z[k] = value;
    });
    return z;
}

// Patterns [n] (with room for 16 more) -> memory, packed if the task says so.
inline void store_patterns(const Task& t, const Chunk& c, uint8_t* codes) {
    alignas(64) uint8_t stream[2 * kChunk + 64];
    int bits = t.spec.element.bits;
    uint8_t* to = static_cast<uint8_t*>(t.to);
    if (!t.packed || bits == 8 || bits == 16) {
        int64_t bytes = t.spec.code_bytes();
        return emit(to + c.first * bytes, codes, c.n * bytes, t.stream);
    }
    bits < 8 ? pack_bytes(bits, codes, c.n, stream)
             : pack_wide(bits, reinterpret_cast<uint16_t*>(codes), c.n, stream);
    emit(to + c.first * bits / 8, stream, ceil_div(c.n * bits, 8), t.stream);
}

inline void store_codes(const Task& t, const Chunk& c, const float* y, const float* z,
                        const float* u) {
    alignas(64) uint8_t codes[2 * kChunk + 64];
    encode(t.spec, y, z, u, c.n, codes);
    store_patterns(t, c, codes);
}

// values [n] times their steps, plus their offsets, to memory in `dtype`. `values` is overwritten.
inline void store_values(const Task& t, const Chunk& c, float* values, const BlockScales& s) {
    int64_t size = t.grid.block_columns;
    const float* steps = s.steps;
    if (s.offsets) {
        alignas(64) float scaled[kChunk];
        apply<Times>(values, c.column, c.n, size, steps, scaled);
        apply<Plus>(scaled, c.column, c.n, size, s.offsets, values);
        alignas(64) uint16_t halves[kChunk];
        if (t.dtype != Dtype::fp32) narrow(values, t.dtype, c.n, halves);
        const void* from = t.dtype == Dtype::fp32 ? static_cast<void*>(values) : halves;
        int64_t bytes = dtype_bytes(t.dtype);
        return emit(static_cast<char*>(t.to) + c.first * bytes, from, c.n * bytes, t.stream);
    }
    if (t.dtype == Dtype::fp32) {
        float* to = static_cast<float*>(t.to) + c.first;
        if (!t.stream) return apply<Times>(values, c.column, c.n, size, steps, to);
        alignas(64) float scaled[kChunk];
        apply<Times>(values, c.column, c.n, size, steps, scaled);
        return stream_out(to, scaled, c.n * sizeof(float));
    }
    alignas(64) float scaled[kChunk];
    alignas(64) uint16_t halves[kChunk];
    apply<Times>(values, c.column, c.n, size, steps, scaled);
    narrow(scaled, t.dtype, c.n, halves);
    emit(static_cast<uint16_t*>(t.to) + c.first, halves, c.n * 2, t.stream);
}

inline void store_masked(const Task& t, const Chunk& c, const float* y, const float* z) {
    alignas(64) float buffer[kChunk], kept[kChunk];
    alignas(64) int32_t inside[kChunk];
    in_range(t.spec, y, z, c.n, inside);
    const float* gradient = widen(t.gradient, t.gradient_dtype, c.first, c.n, buffer);
    for (int64_t i = 0; i < c.n; ++i) kept[i] = inside[i] ? gradient[i] : 0.0f;
    if (t.gradient_dtype == Dtype::fp32) {
        memcpy(static_cast<float*>(t.to) + c.first, kept, c.n * sizeof(float));
    } else {
        narrow(kept, t.gradient_dtype, c.n, static_cast<uint16_t*>(t.to) + c.first);
    }
}

// Where the patterns of a chunk are: in place if they are whole entries, else unpacked into `buffer`.
inline const uint8_t* load_patterns(const Task& t, const Chunk& c, uint8_t* buffer) {
    const uint8_t* from = static_cast<const uint8_t*>(t.x);
    int bits = t.spec.element.bits;
    if (!t.packed || bits == 8 || bits == 16) return from + c.first * t.spec.code_bytes();
    int64_t at = c.first * bits / 8;
    if (bits < 8) {
        unpack_bytes(bits, from + at, c.n, ceil_div(t.grid.size() * bits, 8) - at, buffer);
    } else {
        unpack_wide(bits, from + at, c.n, reinterpret_cast<uint16_t*>(buffer));
    }
    return buffer;
}

inline void dequantize_chunk(const Task& t, const Chunk& c, const BlockScales& s) {
    alignas(64) uint8_t buffer[2 * kChunk + 64];
    alignas(64) float values[kChunk], z_buffer[kChunk];
    const uint8_t* codes = load_patterns(t, c, buffer);
#if defined(__AVX512F__)
    int64_t size = t.grid.block_columns;
    if (wide_decodes(t.spec, c.column, size, codes, c.n)) {
        int64_t bytes = dtype_bytes(t.dtype);
        char* to = static_cast<char*>(t.to) + c.first * bytes;
        bool direct = t.stream && on_lines(to, c.column, size);
        void* out = t.stream && !direct ? static_cast<void*>(values) : to;
        LaneSource source{s.steps, s.steps, s.zero_points, s.offsets};
        wide_decode(t.spec, codes, c.column, c.n, size, source, direct, out, t.dtype);
        if (out != to) stream_out(to, values, c.n * bytes);
        return;
    }
#endif
    const float* z = expand_zero_points(t.grid, s.zero_points, c, z_buffer);
    decode(t.spec, codes, z, c.n, values);
    store_values(t, c, values, s);
}

#if defined(__AVX512F__)
// The stages from x on, fused. False if this is for the plain loops.
inline bool run_wide(const Task& t, const Chunk& c, const BlockScales& s) {
    if (t.job != Job::codes && t.job != Job::values) return false;
    if (!wide_serves(t.spec, c.column, t.grid.block_columns)) return false;
    alignas(64) float u[kChunk], values[kChunk];
    bool drawn = t.spec.rounding == Rounding::stochastic;
    if (drawn) uniform(t.seed, c.first, c.n, u);
    int64_t bytes = dtype_bytes(t.dtype);
    char* to = static_cast<char*>(t.to) + c.first * bytes;  // values
    bool direct = t.stream && on_lines(to, c.column, t.grid.block_columns);
    WideChunk w{static_cast<const char*>(t.x) + c.first * bytes, t.dtype, c.column, c.n,
                t.grid.block_columns, drawn ? u : nullptr, s.factors.multiply,
                t.ahead * bytes, {s.factors.by, s.steps, s.zero_points, s.offsets}, direct, t.finite};
    if (t.job == Job::codes) {
        alignas(64) uint8_t codes[2 * kChunk + 64];
        wide_codes_of(t.spec, w, t.table, t.of_words, codes);
        store_patterns(t, c, codes);
        return true;
    }
    void* out = t.stream && !direct ? static_cast<void*>(values) : to;
    wide_values_of(t.spec, w, out);
    if (out != to) stream_out(to, values, c.n * bytes);
    return true;
}
#endif

inline void run_chunk(const Task& t, const Chunk& c, const BlockScales& s) {
    if (t.job == Job::dequantized) return dequantize_chunk(t, c, s);
#if defined(__AVX512F__)
    if (run_wide(t, c, s)) return;
#endif
    alignas(64) float buffer[kChunk], moved[kChunk], y[kChunk], z_buffer[kChunk];
    const float* z = expand_zero_points(t.grid, s.zero_points, c, z_buffer);
    const float* x = widen(t.x, t.dtype, c.first, c.n, buffer);
    int64_t size = t.grid.block_columns;
    if (s.offsets) {
        apply<Minus>(x, c.column, c.n, size, s.offsets, moved);
        x = moved;
    }
    if (s.factors.multiply) {
        apply<Times>(x, c.column, c.n, size, s.factors.by, y);
    } else {
        apply<Over>(x, c.column, c.n, size, s.factors.by, y);
    }
    if (t.spec.asym && t.spec.zero != Stored::none) {  // added before rounding; NaN counts as 0
        bool kept = t.job == Job::masked;  // but passes no gradient
        for (int64_t i = 0; i < c.n; ++i) y[i] = (y[i] == y[i] || kept ? y[i] : 0.0f) + z[i];
    }
    const float* u = nullptr;
    if (t.spec.rounding == Rounding::stochastic && t.job != Job::masked) {
        uniform(t.seed, c.first, c.n, buffer);  // x is not needed any more
        u = buffer;
    }
    switch (t.job) {
        case Job::codes: return store_codes(t, c, y, z, u);
        case Job::masked: return store_masked(t, c, y, z);
        case Job::values:
        case Job::dequantized: break;
    }
    alignas(64) float values[kChunk];
    snap(t.spec, y, z, u, c.n, values);
    store_values(t, c, values, s);
}

inline void run_rectangle(const Task& t, const Rectangle& r, const BlockScales& s) {
    const Grid& g = t.grid;
    for (int64_t row = r.row; row < r.row + r.rows; ++row) {
        for (int64_t c = 0; c < r.columns; c += kChunk) {
            int64_t column = r.column + c, n = smaller(kChunk, r.columns - c);
            int64_t block = column / g.block_columns - r.column / g.block_columns;
            BlockScales here = {s.steps + block,
                                {s.factors.by ? s.factors.by + block : nullptr, s.factors.multiply},
                                s.zero_points ? s.zero_points + block : nullptr,
                                s.offsets ? s.offsets + block : nullptr};
            run_chunk(t, {index_of(g, r.plane, row, column), column, n}, here);
        }
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
