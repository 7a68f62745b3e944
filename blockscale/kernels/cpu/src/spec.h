// A format as numbers: what the kernels branch on. Filled from blockscale.core.format.Format by
// blockscale/kernels/cpu/native.py; the meaning of every field is docs/numerics.md, section 1.
#pragma once

#include <cstdint>
#include <memory>

namespace blockscale {

enum class Family : int { integer, minifloat, binary };  // ternary: integer; logarithmic: minifloat
enum class ScaleKind : int { fp32, fp16, bf16, pow2, e8m0, two_level };
enum class Rule : int { threshold, nearest };  // of a power-of-two scale, section 3.4
enum class Rounding : int { nearest_even, nearest_away, toward_zero, down, up, stochastic };
enum class Statistic : int { magnitude, high, range, mean, mean_above };  // section 3.1, 3.2
enum class Dtype : int { fp32, bf16, fp16 };  // of the float side of a primitive

struct Element {
    Family family;
    int bits;            // of one code
    bool is_signed;      // two's complement codes (integers), or a sign bit
    float low, high;     // the smallest and largest value; of integers the limits of their codes
    int mantissa_bits;   // minifloats: Y
    int bias;            // minifloats
    float smallest_normal;
    int max_code;        // minifloats: the magnitude code of `high`; above it lie reserved codes
    int nan_code;        // -1: there is none
    int infinity_code;   // -1: there is none; read, never written
};

struct Spec {
    Element element;
    Statistic statistic;
    ScaleKind scale;
    Rule rule;
    int threshold;       // T of section 3.4
    int emax;            // of the levels L = M * 2^emax
    int fraction_bits;   // f of section 1.3
    float levels;        // L
    float full_low, full_high;  // the two divisors of a `full` range; 0 for every other format
    bool asym, recip, poisons;
    Rounding rounding;
    std::shared_ptr<const Spec> inner;  // two levels: the format of the scales
    float outer_levels;                 // and fl(L * Lc), section 3.5

    // Bytes of one unpacked code as kernels hold it: 1 up to 8 bits, else 2.
    int code_bytes() const { return element.bits <= 8 ? 1 : 2; }
    // Bytes of a packed row of `size` codes (section 6).
    int64_t row_bytes(int64_t size) const { return (size * element.bits + 7) / 8; }
};

}  // namespace blockscale
