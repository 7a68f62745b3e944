// SPDX-License-Identifier: BSD-3-Clause
// Records taken apart and put together, a chunk of them at a time, which stays in L1.
#include "../../records.h"

#include "pack.h"
#include "plan.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kUnitRecords = 64 * 1024;  // bytes of a unit of work
constexpr uint64_t kEach = 0x0101010101010101ull;

inline uint64_t mask(int width) { return kEach * ((1u << width) - 1); }

// Words of entries, as many as fit: what lies above a field in its byte is masked, so that none spills.
template <class Word>
BLOCKSCALE_INLINE void gather(const Piece& p, const uint8_t* from, uint8_t* to) {
    const uint64_t keep = mask(p.width);
    for (int64_t i = 0; i + int64_t(sizeof(Word)) <= p.count; i += sizeof(Word)) {
        Word bytes, held;
        copy<sizeof(Word)>(&bytes, from + i);
        copy<sizeof(Word)>(&held, to + i);
        held |= static_cast<Word>(((bytes >> p.right) & static_cast<Word>(keep)) << p.left);
        copy<sizeof(Word)>(to + i, &held);
    }
}

template <class Word>
BLOCKSCALE_INLINE void scatter(const Piece& p, const uint8_t* from, uint8_t* to) {
    const uint64_t keep = mask(p.width);
    for (int64_t i = 0; i + int64_t(sizeof(Word)) <= p.count; i += sizeof(Word)) {
        Word codes, held;
        copy<sizeof(Word)>(&codes, from + i);
        copy<sizeof(Word)>(&held, to + i);
        held |= static_cast<Word>(((codes >> p.left) & static_cast<Word>(keep)) << p.right);
        copy<sizeof(Word)>(to + i, &held);
    }
}

// Fields of whole bytes, which need no masks, and others in words of as many as there are.
inline void take(const Piece& p, const uint8_t* record, uint8_t* codes) {
    const uint8_t* from = record + p.from;
    uint8_t* to = codes + p.target;
    if (p.dense) {
#if defined(__AVX512BW__)
        if (p.width == 1 && p.count == 4) {
            uint32_t bits;
            copy<4>(&bits, from);
            __m256i held = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(to));
            __m256i field = _mm256_maskz_set1_epi8(bits, static_cast<char>(1 << p.left));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_or_si256(held, field));
            return;
        }
#endif
        alignas(8) uint8_t fields[8 * 64];
        int64_t n = p.count * 8 / p.width;
        if (p.width == 1) unpack_width<1>(from, n, p.count, fields);
        if (p.width == 2) unpack_width<2>(from, n, p.count, fields);
        if (p.width == 4) unpack_width<4>(from, n, p.count, fields);
        for (int64_t i = 0; i < n; ++i) to[i] |= static_cast<uint8_t>(fields[i] << p.left);
    } else if (p.width == 8) {
        memcpy(to, from, p.count);
    } else if (p.count % 8 == 0) {
        gather<uint64_t>(p, from, to);
    } else if (p.count % 4 == 0) {
        gather<uint32_t>(p, from, to);
    } else {
        gather<uint8_t>(p, from, to);
    }
}

inline void put(const Piece& p, const uint8_t* codes, uint8_t* record) {
    const uint8_t* from = codes + p.target;
    uint8_t* to = record + p.from;
    if (p.dense) {
#if defined(__AVX512BW__)
        if (p.width == 1 && p.count == 4) {
            __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
            __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << p.left));
            uint32_t bits = _mm256_test_epi8_mask(codes, bit);
            copy<4>(to, &bits);
            return;
        }
#endif
        int64_t each = 8 / p.width;
        const int keep = (1 << p.width) - 1;
        for (int64_t i = 0; i < p.count; ++i) {
            int byte = 0;
            for (int64_t j = 0; j < each; ++j)
                byte |= ((from[i * each + j] >> p.left) & keep) << (p.width * j);
            to[i] |= static_cast<uint8_t>(byte);
        }
    } else if (p.width == 8) {
        memcpy(to, from, p.count);
    } else if (p.count % 8 == 0) {
        scatter<uint64_t>(p, from, to);
    } else if (p.count % 4 == 0) {
        scatter<uint32_t>(p, from, to);
    } else {
        scatter<uint8_t>(p, from, to);
    }
}

inline void add_to(uint8_t* codes, int64_t n, int add, int bits) {
    const uint8_t keep = static_cast<uint8_t>((1 << bits) - 1), by = static_cast<uint8_t>(add);
    for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(codes[i] + by) & keep;
}

// Whether a part is a run of whole bytes, which goes from one place to the other.
inline bool plain(const Part& part) {
    return part.bits == 8 && part.pieces.size() == 1 && part.pieces[0].width == 8 && part.add == 0;
}

void part_apart(const Record& record, const Part& part, const uint8_t* records, int64_t n, uint8_t* out) {
    if (plain(part)) {
        const Piece& p = part.pieces[0];
        for (int64_t i = 0; i < n; ++i)
            memcpy(out + i * part.entries, records + i * record.size + p.from, part.entries);
        return;
    }
    alignas(64) uint8_t codes[kChunk + 64], bytes[kChunk + 64];
    int64_t step = larger(1, kChunk / part.entries);
    for (int64_t i = 0; i < n; i += step) {
        int64_t now = smaller(step, n - i), entries = now * part.entries;
        memset(codes, 0, entries);
        for (const Piece& p : part.pieces)
            for (int64_t j = 0; j < now; ++j)
                take(p, records + (i + j) * record.size, codes + j * part.entries);
        if (part.add) add_to(codes, entries, part.add, part.bits);
        if (part.packed && part.bits < 8) {
            pack_bytes(part.bits, codes, entries, bytes);
            memcpy(out + i * part.bytes(), bytes, now * part.bytes());
        } else {
            memcpy(out + i * part.bytes(), codes, entries);
        }
    }
}

void part_together(const Record& record, const Part& part, const uint8_t* in, int64_t n, uint8_t* records) {
    if (plain(part)) {
        const Piece& p = part.pieces[0];
        for (int64_t i = 0; i < n; ++i)
            memcpy(records + i * record.size + p.from, in + i * part.entries, part.entries);
        return;
    }
    alignas(64) uint8_t codes[kChunk + 64];
    int64_t step = larger(1, kChunk / part.entries);
    for (int64_t i = 0; i < n; i += step) {
        int64_t now = smaller(step, n - i), entries = now * part.entries;
        const uint8_t* from = in + i * part.bytes();
        if (part.packed && part.bits < 8) {
            unpack_bytes(part.bits, from, entries, now * part.bytes(), codes);
        } else {
            memcpy(codes, from, entries);
        }
        if (part.add) add_to(codes, entries, (1 << part.bits) - part.add, part.bits);
        for (const Piece& p : part.pieces)
            for (int64_t j = 0; j < now; ++j)
                put(p, codes + j * part.entries, records + (i + j) * record.size);
    }
}

void apart(const Record& record, const uint8_t* records, int64_t n, uint8_t* const* parts, int threads) {
    int64_t step = larger(1, kUnitRecords / record.size), units = ceil_div(n, step);
    for_units(units, threads, units > 1, [&](int64_t unit) {
        int64_t first = unit * step, now = smaller(step, n - first);
        for (size_t i = 0; i < record.parts.size(); ++i)
            part_apart(record, record.parts[i], records + first * record.size, now,
                       parts[i] + first * record.parts[i].bytes());
    });
}

void together(const Record& record, const uint8_t* const* parts, int64_t n, uint8_t* records, int threads) {
    int64_t step = larger(1, kUnitRecords / record.size), units = ceil_div(n, step);
    for_units(units, threads, units > 1, [&](int64_t unit) {
        int64_t first = unit * step, now = smaller(step, n - first);
        memset(records + first * record.size, 0, now * record.size);
        for (size_t i = 0; i < record.parts.size(); ++i)
            part_together(record, record.parts[i], parts[i] + first * record.parts[i].bytes(), now,
                          records + first * record.size);
    });
}

}  // namespace

const Records& records() {
    static const Records table{apart, together};
    return table;
}

}  // namespace blockscale::BLOCKSCALE_ISA
