// SPDX-License-Identifier: BSD-3-Clause
// The table of an element whose codes are places in it, laid out for the search of the nearest value.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace blockscale {

// Most tables of up to 16 values have a shorter way: evenly spaced cells with at most one threshold in
// each. A number y, or its magnitude where `mirrored`, is in the cell of index: the low 5 bits of
// fma(y, slope, 1.5 * 2^23), after its magnitude was limited to `bound`. That keeps order, so all
// that is left is to compare with the threshold of the cell.
struct Cells {
    static constexpr int kCount = 32;

    bool serve;     // else nothing below has a meaning
    bool mirrored;  // of each value v and code c there are -v and c | sign, too
    int sign;
    float bound, slope;
    alignas(64) float thresholds[kCount];  // infinity in a cell without
    alignas(64) uint16_t ranks[kCount];    // up to the threshold; above it is the next one
    alignas(64) float below[kCount];       // values up to the threshold
    alignas(64) float above[kCount];
    alignas(16) uint8_t codes[16];         // by rank; where mirrored, of magnitudes
};

// Values 2^(1/2^F) apart have the same thresholds in each octave [2^n, 2^(n+1)), but for the one below the
// smallest of them. An octave has kCells evenly spaced cells with at most one threshold in each, so
// that adding the entry of its cell to the bits of a magnitude carries into the code above that threshold:
// (bits + entry) >> shift is the code, if it is within 1 and `last`.
struct Octaves {
    static constexpr int kCells = 16;
    static constexpr int kRight = 19;  // the low bits of what is right of it say the cell

    bool serve;         // else nothing below has a meaning
    int shift;          // 23 - F
    int32_t first;      // the bits of the threshold below the smallest value; at and under it the code is 0
    int32_t last, sign; // the largest code of a magnitude, and the bit that is added for negative ones
    int32_t base;       // what 1.0's octave begins with and codes do not have: see mantissas
    alignas(64) int32_t entries[kCells];
    // Of value c, c > 0: with n = c + base, the mantissa of entry n % kCells and the exponent n >> F.
    alignas(64) int32_t mantissas[kCells];
};

// A number's rank, its place among the values in order, is the count of thresholds below it, as
// ordered integers (numerics.md, section 4). It is found by halving: the first four steps compare
// with one of 15 thresholds, each step s from there on with one of 2^s.
struct Codebook {
    static constexpr int kMost = 256;

    int steps;  // 4 for up to 16 values, 6 for up to 64, else 8
    // [0, 15): of all thresholds, those at the ends of 16 equal parts; [2^s, 2^(s+1)): for step s
    // >= 4, the threshold in the middle of each of the 2^s parts that steps before have made.
    alignas(64) int32_t thresholds[kMost];
    alignas(64) int32_t codes[kMost];    // by rank
    alignas(64) uint16_t words[kMost];   // the same
    alignas(64) float ranked[kMost];     // values by rank
    alignas(64) float values[kMost];     // by code; NaN where a code means nothing
    float smallest, largest;             // values
    Cells cells;
    Octaves octaves;
};

// thresholds: between neighbours of `order`, which has codes by rank. Throws std::invalid_argument
// for lists of other sizes than a table of `bits` has.
std::shared_ptr<const Codebook> make_codebook(int bits, const std::vector<float>& values,
                                              const std::vector<int>& order,
                                              const std::vector<float>& thresholds);

}  // namespace blockscale
