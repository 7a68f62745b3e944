// SPDX-License-Identifier: BSD-3-Clause
// Integer weights -> the panels that the dot products read (IntegerWeight). Once for each weight.
#include "../../linear.h"
#include "../simd/array.h"

namespace blockscale::BLOCKSCALE_ISA {

const Primitives& primitives();

namespace {

// Steps in this range times integer sums below 2^31 stay float32 numbers.
bool tame(float step) {
    float size = from_bits(to_bits(step) & INT32_MAX);
    return size == 0.0f || (size >= 0x1p-90f && size <= 0x1p90f);
}

bool finite(float step) { return (to_bits(step) & INT32_MAX) < kInfinity; }

// What a panel is packed from: its rows as patterns [32][k filled up to chunks].
struct Rows {
    const FloatWeight& from;
    const IntegerWeight& to;
    int64_t first, count, stride;
    const uint8_t* patterns;
};

int64_t block_at(const Rows& r, int64_t row, int64_t block) {
    const Grid& g = r.from.grid;
    return (r.first + row) / g.block_rows * g.scale_columns() + block;
}

bool all_equal(const uint8_t* codes, int64_t n, int32_t value) {
    for (int64_t i = 0; i < n; ++i)
        if (codes[i] != value) return false;
    return true;
}

// Steps and zero points of a panel. A finite step out of range matters only if its block is not
// all zero.
bool pack_scales(const Rows& r, float* scales, int32_t* zeros) {
    bool usable = true;
    const Spec& spec = *r.from.spec;
    int32_t shift = spec.element.is_signed ? static_cast<int32_t>(r.to.offset()) : 0;
    for (int64_t block = 0; block < r.to.blocks(); ++block) {
        for (int64_t row = 0; row < kPanel; ++row) {
            int64_t at = block * kPanel + row, first = block * r.to.block;
            bool there = row < r.count;
            float step = there ? r.from.steps[block_at(r, row, block)] : 0.0f;
            int32_t zero = shift;
            if (there && r.from.zero_points)  // integers, of weights that are packed
                zero += static_cast<int32_t>(r.from.zero_points[block_at(r, row, block)]);
            if (zeros) zeros[at] = zero;
            scales[at] = step;
            if (!there || tame(step)) continue;
            int64_t n = smaller(r.to.block, r.to.k - first);
            usable &= finite(step) && all_equal(r.patterns + row * r.stride + first, n, zero);
            scales[at] = 1.0f;
        }
    }
    return usable;
}

void pack_codes(const Rows& r, uint8_t* to) {
    int64_t steps = r.to.chunks() * 4;
    const uint8_t* from = r.patterns;
    if (!r.to.nibbles) {
        for (int64_t step = 0; step < steps; ++step)
            for (int64_t row = 0; row < kPanel; ++row)
                copy<4>(to + (step * kPanel + row) * 4, from + row * r.stride + step * 4);
        return;
    }
    for (int64_t step = 0; step < steps; step += 2)
        for (int64_t row = 0; row < kPanel; ++row)
            for (int64_t i = 0; i < 4; ++i) {
                const uint8_t* codes = from + row * r.stride + step * 4 + i;
                to[(step / 2 * kPanel + row) * 4 + i] = codes[0] | codes[4] << 4;
            }
}

// Patterns of two's complement or unsigned codes -> unsigned codes.
void to_unsigned(const Element& e, int64_t offset, uint8_t* codes, int64_t n) {
    if (!e.is_signed) return;
    uint8_t sign = 1 << (e.bits - 1), shift = offset - sign;
    for (int64_t i = 0; i < n; ++i) codes[i] = (codes[i] ^ sign) + shift;
}

bool pack_panel(const FloatWeight& from, const IntegerWeight& to, int64_t panel, uint8_t* patterns,
                uint8_t* codes, float* scales, int32_t* zeros) {
    int64_t first = panel * kPanel, count = smaller(kPanel, to.n - first), size = to.chunks() * kCodes;
    const Element& e = from.spec->element;
    int64_t bytes = from.spec->row_bytes(to.k);
    memset(patterns, 0, kPanel * size);
    for (int64_t row = 0; row < count; ++row) {
        const uint8_t* packed = from.codes + (first + row) * bytes;
        uint8_t* codes_of_row = patterns + row * size;
        if (e.bits == 8) {
            memcpy(codes_of_row, packed, to.k);
        } else {
            primitives().unpack(e.bits, packed, 1, to.k, codes_of_row, 1);
        }
        to_unsigned(e, to.offset(), codes_of_row, to.k);
    }
    Rows rows{from, to, first, count, size, patterns};
    pack_codes(rows, codes + panel * to.chunks() * to.chunk_bytes());
    int64_t at = panel * to.blocks() * kPanel;
    return pack_scales(rows, scales + at, zeros ? zeros + at : nullptr);
}

// The codes of a panel's chunk -> added to sums [32].
void add_chunk(const uint8_t* codes, bool nibbles, int32_t* sums) {
    int64_t steps = nibbles ? 2 : 4;
    for (int64_t step = 0; step < steps; ++step)
        for (int64_t row = 0; row < kPanel; ++row)
            for (int64_t i = 0; i < 4; ++i) {
                uint8_t code = codes[(step * kPanel + row) * 4 + i];
                sums[row] += nibbles ? (code & 15) + (code >> 4) : code;
            }
}

}  // namespace

void sum_blocks(const IntegerWeight& w, int64_t block, int32_t* sums, int threads) {
    int64_t blocks = ceil_div(w.k, block), chunks = ceil_div(block, kCodes);
    int64_t every = ceil_div(w.block, block);
#pragma omp parallel for num_threads(startable(threads))
    for (int64_t panel = 0; panel < w.panels(); ++panel) {
        const uint8_t* codes = w.codes + panel * w.chunks() * w.chunk_bytes();
        for (int64_t i = 0; i < blocks; ++i) {
            int32_t* to = sums + (panel * blocks + i) * kPanel;
            memset(to, 0, kPanel * 4);
            for (int64_t c = i * chunks; c < smaller(w.chunks(), (i + 1) * chunks); ++c)
                add_chunk(codes + c * w.chunk_bytes(), w.nibbles, to);
            int32_t count = smaller(block, w.k - i * block), all = w.offset();
            const int32_t* zeros =
                w.zeros ? w.zeros + (panel * w.blocks() + i / every) * kPanel : nullptr;
            for (int64_t row = 0; row < kPanel; ++row) to[row] -= count * (zeros ? zeros[row] : all);
        }
    }
}

bool pack_integers(const FloatWeight& from, const IntegerWeight& to, uint8_t* codes, float* scales,
                   int32_t* zeros, int threads) {
    int failed = 0;
    Lack lack;
#pragma omp parallel num_threads(startable(threads)) reduction(| : failed)
    {
        Later<Array<uint8_t>> patterns;
        lack.carry([&] { patterns.make(kPanel * to.chunks() * kCodes); });
#pragma omp for
        for (int64_t panel = 0; panel < to.panels(); ++panel)
            lack.carry([&] { failed |= !pack_panel(from, to, panel, *patterns, codes, scales, zeros); });
    }
    lack.raise();
    return !failed;
}

}  // namespace blockscale::BLOCKSCALE_ISA
