// SPDX-License-Identifier: BSD-3-Clause
// A format as numbers: what the kernels branch on. bind_format.cpp fills it, field by field and by
// name, from FormatNumbers (blockscale/kernels/numbers.py); docs/numerics.md, section 1, says what
// every field means.
//
// A switch over one of these enumerations names all its cases and has no default: the compiler then
// refuses a new case (-Werror=switch) wherever nobody has said what it means.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codebook.h"

namespace blockscale {

// ternary: integer; logarithmic: minifloat; fractional logarithms: codebook
enum class Family : int { integer, minifloat, binary, codebook };
enum class ScaleKind : int { fp32, fp16, bf16, pow2, e8m0, two_level };
enum class Rounding : int { nearest_even, nearest_away, toward_zero, down, up, stochastic };
enum class Statistic : int { magnitude, high, range, mean, mean_above };  // section 3.1, 3.2
enum class Dtype : int { fp32, bf16, fp16 };  // of the float side of a primitive
enum class Stored : int { none, fp32, fp16, bf16 };  // how a block's offset or zero point is stored

struct Element {
    Family family;
    int bits;            // of one code
    bool is_signed;      // two's complement codes (integers), or a sign bit
    float low, high;     // the smallest and largest value; of integers the limits of their codes
    float smallest_normal;
    Statistic statistic;  // of its blocks where the format asks for no other: Spec::statistic rules
    int mantissa_bits;   // minifloats: Y
    int bias;            // minifloats
    int max_code;        // minifloats: the magnitude code of `high`; above it lie reserved codes
    int nan_code;        // -1: there is none
    int infinity_code;   // -1: there is none; read, never written
    std::vector<float> values;      // codebooks: by code
    std::vector<int> order;         // codebooks: codes by value
    std::vector<float> thresholds;  // codebooks: between neighbours of `order`
    std::shared_ptr<const Codebook> book;  // made of these three; null for other families
};

struct Spec {
    Element element;
    Statistic statistic;
    ScaleKind scale;
    bool nearest;        // that rule of a power-of-two scale, in the place of `threshold`
    int threshold;       // T of section 3.4
    int emax;            // of the levels L = M * 2^emax
    float levels;        // L
    int fraction_bits;   // f of section 1.3
    bool full;           // a range with a divisor for either side: element.low and element.high
    bool asym, recip, poisons;
    Rounding rounding;
    Stored zero;         // of `asym`; none: int32, which is added after rounding (section 4)
    Stored offset;       // section 3.8; such ranges are not widened to 0
    // Two levels: what encodes and decodes the scales' own codes, of which only the element and
    // rounding to nearest even count; null for one level. outer_levels: fl(L * Lc), section 3.5.
    std::shared_ptr<const Spec> inner;
    float outer_levels;

    // Bytes of one unpacked code as kernels hold it: 1 up to 8 bits, else 2.
    int code_bytes() const { return element.bits <= 8 ? 1 : 2; }
    // Bytes of a packed row of `size` codes (section 6).
    int64_t row_bytes(int64_t size) const { return (size * element.bits + 7) / 8; }
};

// Whether a scale is chosen from values with their sign, not from magnitudes.
constexpr bool takes_values(Statistic statistic) {
    switch (statistic) {
        case Statistic::high:
        case Statistic::range: return true;
        case Statistic::magnitude:
        case Statistic::mean:
        case Statistic::mean_above: return false;
    }
    __builtin_unreachable();
}

// How often a block's magnitudes are summed to choose its scale.
constexpr int summing_passes(Statistic statistic) {
    switch (statistic) {
        case Statistic::magnitude:
        case Statistic::high:
        case Statistic::range: return 0;
        case Statistic::mean: return 1;
        case Statistic::mean_above: return 2;
    }
    __builtin_unreachable();
}

}  // namespace blockscale
