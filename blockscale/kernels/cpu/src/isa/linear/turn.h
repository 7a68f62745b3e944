// SPDX-License-Identifier: BSD-3-Clause
// Rows that become columns.
#pragma once

#include "vector.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

#if defined(__AVX512F__)
// 16 rows of 16 numbers, of whose columns only the first `columns` are written.
inline void turn_block(const float* const* rows, int64_t column, int64_t columns, float* to,
                       int64_t stride) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(rows[i] + column);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {  // of four rows: columns j * 2 and j * 2 + 1 of each four
            __m512d low = _mm512_castps_pd(b[i + j]), high = _mm512_castps_pd(b[i + j + 2]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        __m512 even = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88);
        __m512 odd = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xDD);
        __m512 even_high = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88);
        __m512 odd_high = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xDD);
        b[j] = _mm512_shuffle_f32x4(even, even_high, 0x88);
        b[8 + j] = _mm512_shuffle_f32x4(even, even_high, 0xDD);
        b[4 + j] = _mm512_shuffle_f32x4(odd, odd_high, 0x88);
        b[12 + j] = _mm512_shuffle_f32x4(odd, odd_high, 0xDD);
    }
    if (columns >= 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_storeu_ps(to + i * stride, b[i]);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
        if (i < columns) _mm512_storeu_ps(to + i * stride, b[i]);
}
#endif

// to [column][row] = rows [row][column]. Up to 15 numbers behind each row may be read.
void turn(const float* const* rows, int64_t count, int64_t columns, float* to, int64_t stride) {
    int64_t row = 0;
#if defined(__AVX512F__)
    for (; row + 16 <= count; row += 16)
        for (int64_t column = 0; column < columns; column += 16)
            turn_block(rows + row, column, smaller(16, columns - column), to + column * stride + row,
                       stride);
#endif
    for (; row + 4 <= count; row += 4)  // four numbers that lie together are written together
        for (int64_t column = 0; column < columns; ++column) {
            float four[4] = {rows[row][column], rows[row + 1][column], rows[row + 2][column],
                             rows[row + 3][column]};
            copy<sizeof four>(to + column * stride + row, four);
        }
    int64_t left = count % 4;
    for (int64_t column = 0; column < columns; ++column)
        for (int64_t i = 0; i < left; ++i) to[column * stride + row + i] = rows[row + i][column];
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
