// SPDX-License-Identifier: BSD-3-Clause
// Records: blocks of a few bytes as other producers' files store them, codes, scales and all, taken apart into
// the parts of a format, and put together again. One table per instruction set.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscale {

// Where some entries of a part lie: entry target + i has, from its bit `left` on, the `width` bits of
// byte from + i from bit `right` on. dense: entries lie after one another in bytes instead, as many as
// fit: the 8 / width entries from target + i * 8 / width are the fields of byte from + i, lowest first.
struct Piece {
    int32_t from, count, right, width, left, target;
    bool dense;
};

// A part of `entries` numbers a record, of `bits` each: below 8 without what is above them. `add` is added to
// each when it is taken out, modulo 2^bits. packed: as section 6 of numerics.md says, else a byte each.
struct Part {
    int32_t entries, bits, add;
    bool packed;
    std::vector<Piece> pieces;

    int64_t bytes() const { return packed ? int64_t(entries) * bits / 8 : entries; }
};

struct Record {
    int64_t size;  // in bytes
    std::vector<Part> parts;
};

struct Records {
    // n records -> parts [n, bytes], each at its place in `parts`.
    void (*apart)(const Record&, const uint8_t* records, int64_t n, uint8_t* const* parts, int threads);
    // The reverse.
    void (*together)(const Record&, const uint8_t* const* parts, int64_t n, uint8_t* records, int threads);
};

}  // namespace blockscale
