// SPDX-License-Identifier: BSD-3-Clause
// The processor's matrix unit (AMX): tiles of 16 rows of up to 64 bytes, and products of whole tiles. One
// class with two bodies: the instructions and, with BLOCKSCALE_AMX_EMULATED, the same in plain C++, so that
// processors without them can test what is built on it.
#pragma once

#include "../tile.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Tiles of a matrix product that stay for its time. `depth`: codes along k of one product, a multiple of 4
// up to 64. Tiles 0 to 3 are sums [16][16] of int32; 4 and 5 codes of x [16][depth]; 6 and 7 codes of the
// weight [depth / 4][16 outputs][4].
constexpr int kMatrixTiles = 8;
constexpr int64_t kMatrixBytes = 64;

inline int64_t rows_of(int tile, int64_t depth) { return tile < 6 ? kMatrixRows : depth / 4; }
inline int64_t bytes_of(int tile, int64_t depth) {
    return tile == 4 || tile == 5 ? depth : kMatrixBytes;
}

#if defined(BLOCKSCALE_AMX_EMULATED)

class Tiles {
public:
    explicit Tiles(int64_t depth) : depth_(depth) {}

    template <int T>
    void zero() {
        memset(at_[T], 0, sizeof at_[T]);
    }

    template <int T>
    void load(const void* from, int64_t stride) {
        memset(at_[T], 0, sizeof at_[T]);
        for (int64_t row = 0; row < rows_of(T, depth_); ++row)
            memcpy(at_[T][row], static_cast<const char*>(from) + row * stride, bytes_of(T, depth_));
    }

    template <int T>
    void store(void* to, int64_t stride) const {
        for (int64_t row = 0; row < rows_of(T, depth_); ++row)
            memcpy(static_cast<char*>(to) + row * stride, at_[T][row], bytes_of(T, depth_));
    }

    // Tile C += A · B: signed codes of x, and of the weight, if they are SIGNED.
    template <int C, int A, int B, bool SIGNED>
    void dot() {
        for (int64_t row = 0; row < kMatrixRows; ++row)
            for (int64_t column = 0; column < 16; ++column) {
                uint32_t sum;  // may wrap
                copy<4>(&sum, &at_[C][row][column * 4]);
                for (int64_t i = 0; i < depth_; ++i) {
                    uint8_t code = at_[B][i / 4][column * 4 + i % 4];
                    int32_t w = SIGNED ? static_cast<int8_t>(code) : code;
                    sum += static_cast<uint32_t>(static_cast<int8_t>(at_[A][row][i]) * w);
                }
                copy<4>(&at_[C][row][column * 4], &sum);
            }
    }

    // Tile C += A · B of bf16 numbers: even and odd ones are summed apart. Subnormals are 0.
    template <int C, int A, int B>
    void dot_bf16() {
        for (int64_t row = 0; row < kMatrixRows; ++row)
            for (int64_t column = 0; column < 16; ++column) {
                float apart[2] = {}, sum;
                for (int64_t i = 0; i < 2 * kMatrixRows; ++i) {
                    float x = widened(at_[A][row] + 2 * i);
                    apart[i % 2] += x * widened(at_[B][i / 2] + column * 4 + i % 2 * 2);
                }
                copy<4>(&sum, &at_[C][row][column * 4]);
                sum += apart[0] + apart[1];
                copy<4>(&at_[C][row][column * 4], &sum);
            }
    }

private:
    static float widened(const uint8_t* bf16) {
        uint16_t bits;
        copy<2>(&bits, bf16);
        return (bits & 0x7F80) ? from_bits(static_cast<int32_t>(uint32_t{bits} << 16)) : 0.0f;
    }

    int64_t depth_;
    uint8_t at_[kMatrixTiles][kMatrixRows][kMatrixBytes];
};

#elif defined(__AMX_INT8__)

// Of the calling thread. Not the intrinsics: GCC's take no template's numbers, and say nothing of memory.
class Tiles {
public:
    explicit Tiles(int64_t depth) : used_(depth != 0) {
        if (!used_) return;
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        static_assert(sizeof shapes == 64);
        for (int tile = 0; tile < kMatrixTiles; ++tile) {
            shapes.bytes[tile] = static_cast<uint16_t>(bytes_of(tile, depth));
            shapes.rows[tile] = static_cast<uint8_t>(rows_of(tile, depth));
        }
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~Tiles() {
        if (used_) asm volatile("tilerelease" ::: "memory");
    }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    template <int T>
    void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(T));
    }

    template <int T>
    void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
    }

    template <int T>
    void store(void* to, int64_t stride) const {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
    }

    template <int C, int A, int B, bool SIGNED>
    void dot() {
        if constexpr (SIGNED) {
            asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
        } else {
            asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
        }
    }

    template <int C, int A, int B>
    void dot_bf16() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }

private:
    bool used_;
};

#endif

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
