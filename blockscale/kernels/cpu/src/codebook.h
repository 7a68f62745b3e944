// The table of an element whose codes are places in it, laid out for the search of the nearest value.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace blockscale {

// A number's rank, its place among the values in order, is the count of thresholds below it, as
// ordered integers (numerics.md, section 4). It is found by halving: the first four steps compare
// with one of 15 thresholds, each step s from there on with one of 2^s.
struct Codebook {
    static constexpr int kMost = 256;

    int steps;  // 4 for up to 16 values, else as many as a code has bits
    // [0, 15): of all thresholds, those at the ends of 16 equal parts; [2^s, 2^(s+1)): for step s
    // >= 4, the threshold in the middle of each of the 2^s parts that steps before have made.
    alignas(64) int32_t thresholds[kMost];
    alignas(64) int32_t codes[kMost];    // by rank
    alignas(64) uint16_t words[kMost];   // the same
    alignas(64) float ranked[kMost];     // values by rank
    alignas(64) float values[kMost];     // by code; NaN where a code means nothing
    float smallest, largest;             // values
};

// thresholds: between neighbours of `order`, which has codes by rank. Throws std::invalid_argument
// for lists of other sizes than a table of `bits` has.
std::shared_ptr<const Codebook> make_codebook(int bits, const std::vector<float>& values,
                                              const std::vector<int>& order,
                                              const std::vector<float>& thresholds);

}  // namespace blockscale
