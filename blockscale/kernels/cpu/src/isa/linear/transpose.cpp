// SPDX-License-Identifier: BSD-3-Clause
// Matrices of bytes, of 16-bit and of 32-bit numbers: rows become columns.
#include "../simd/environment.h"
#include "../../memory.h"
#include "turn.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kRows = 64;  // of a strip, whose columns stay in the first-level cache

// Swaps the `bits` at `mask` of b with those that lie so many higher in a.
inline void swap_parts(uint64_t& a, uint64_t& b, int bits, uint64_t mask) {
    uint64_t other = ((a >> bits) ^ b) & mask;
    b ^= other, a ^= other << bits;
}

// 8 rows of 8 bytes.
inline void turn_block(const uint8_t* from, int64_t stride, uint8_t* to, int64_t to_stride) {
    uint64_t row[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) copy<8>(&row[i], from + i * stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) swap_parts(row[i], row[i + 4], 32, 0x00000000FFFFFFFFu);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += (i & 1) ? 3 : 1) swap_parts(row[i], row[i + 2], 16, 0x0000FFFF0000FFFFu);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) swap_parts(row[i], row[i + 1], 8, 0x00FF00FF00FF00FFu);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) copy<8>(to + i * to_stride, &row[i]);
}

#if defined(__SSE2__)
// 16 rows of 16 bytes: four times rows i and i + 8 are shuffled into one another.
inline void turn_large(const uint8_t* from, int64_t stride, uint8_t* to, int64_t to_stride) {
    __m128i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
        a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
#pragma GCC unroll 2
    for (int round = 0; round < 2; ++round) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
            b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            a[2 * i] = _mm_unpacklo_epi8(b[i], b[i + 8]);
            a[2 * i + 1] = _mm_unpackhi_epi8(b[i], b[i + 8]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * to_stride), a[i]);
}
#endif

// 4 rows of 4 numbers of 16 bits.
inline void turn_block(const uint16_t* from, int64_t stride, uint16_t* to, int64_t to_stride) {
    uint64_t row[4];
    for (int i = 0; i < 4; ++i) copy<8>(&row[i], from + i * stride);
    for (int i = 0; i < 2; ++i) swap_parts(row[i], row[i + 2], 32, 0x00000000FFFFFFFFu);
    for (int i = 0; i < 4; i += 2) swap_parts(row[i], row[i + 1], 16, 0x0000FFFF0000FFFFu);
    for (int i = 0; i < 4; ++i) copy<8>(to + i * to_stride, &row[i]);
}

// Rows [from, from + count) of a matrix.
template <class T>
void turn_rows(const T* x, int64_t rows, int64_t columns, int64_t from, int64_t count, T* y) {
    constexpr int64_t kSide = 8 / sizeof(T);
    int64_t whole = count / kSide * kSide, across = columns / kSide * kSide;
    x += from * columns, y += from;
    int64_t done = 0;  // columns
#if defined(__SSE2__)
    if constexpr (sizeof(T) == 1) {
        done = count % 16 == 0 ? columns / 16 * 16 : 0;
        for (int64_t column = 0; column < done; column += 16)
            for (int64_t row = 0; row < count; row += 16)
                turn_large(x + row * columns + column, columns, y + column * rows + row, rows);
    }
#endif
    for (int64_t column = done; column < across; column += kSide)
        for (int64_t row = 0; row < whole; row += kSide)
            turn_block(x + row * columns + column, columns, y + column * rows + row, rows);
    for (int64_t column = done; column < columns; ++column)
        for (int64_t row = column < across ? whole : 0; row < count; ++row)
            y[column * rows + row] = x[row * columns + column];
}

// Blocks of 16 columns, which read no further than a row ends.
void turn_rows(const float* x, int64_t rows, int64_t columns, int64_t from, int64_t count, float* y) {
    const float* lines[kRows];
    int64_t whole = columns / 16 * 16;
    for (int64_t i = 0; i < count; ++i) lines[i] = x + (from + i) * columns;
    turn(lines, count, whole, y + from, rows);
    for (int64_t column = whole; column < columns; ++column)
        for (int64_t i = 0; i < count; ++i) y[column * rows + from + i] = lines[i][column];
}

template <class T>
void turn_all(const void* x, int64_t planes, int64_t rows, int64_t columns, void* y, int threads) {
    int64_t strips = ceil_div(rows, kRows), items = planes * strips;
#pragma omp parallel for num_threads(startable(threads)) schedule(static) if (threads > 1 && items > 1)
    for (int64_t item = 0; item < items; ++item) {
        int64_t plane = item / strips * rows * columns, from = item % strips * kRows;
        turn_rows(static_cast<const T*>(x) + plane, rows, columns, from, smaller(kRows, rows - from),
                  static_cast<T*>(y) + plane);
    }
}

}  // namespace

void transpose(int bytes, const void* x, int64_t planes, int64_t rows, int64_t columns, void* y,
               int threads) {
    if (bytes == 1) return turn_all<uint8_t>(x, planes, rows, columns, y, threads);
    if (bytes == 2) return turn_all<uint16_t>(x, planes, rows, columns, y, threads);
    turn_all<float>(x, planes, rows, columns, y, threads);
}

}  // namespace blockscale::BLOCKSCALE_ISA
