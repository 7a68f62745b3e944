// SPDX-License-Identifier: BSD-3-Clause
// Elements by tables in the fused loops of wide.h. Minifloats of a few bits by a table of all that rounding
// can meet: half of the work of arithmetic, and for bfloat16 less, because 32 numbers lie in one register.
// Codebooks by search, by cells or, where their values are powers, counted on bits.
#pragma once

#include "encode.h"
#include "wide_elements.h"

namespace blockscale::BLOCKSCALE_ISA {

// Where rounding to an element with m mantissa bits turns over, the magnitude has at most m + 1 of
// them. Such magnitudes from half of the smallest number on are points; entry 2 k is the code of point
// k, entry 2 k + 1 that of all between it and the next one.
struct CodeTable {
    static constexpr int kEntries = 64;

    // For spec.element and rounding to nearest even; serves: whether the entries suffice.
    CodeTable(const Spec& spec, bool wanted) : serves(false) {
        const Element& e = spec.element;
        if (!wanted || e.family != Family::minifloat) return;
        if (spec.rounding != Rounding::nearest_even) return;
        shift = 6 - e.mantissa_bits;  // between points, in bits of a bfloat16
        first = (127 - e.bias - e.mantissa_bits) << 7;
        int32_t last = first + (kEntries / 2 - 1) * (1 << (shift > 0 ? shift : 0));
        serves = shift > 0 && first >= 0x80 && from_bits(last << 16) >= e.high;
        if (!serves) return;
        float values[kEntries];
        uint8_t codes[kEntries];
        for (int i = 0; i < kEntries; ++i)
            values[i] = from_bits((first + (i / 2 << shift) + (i % 2 << (shift - 1))) << 16);
        encode(spec, values, nullptr, nullptr, kEntries, codes);
        for (int i = 0; i < kEntries; ++i) entries[i] = codes[i];
    }

    // Whether x [n blocks] times these factors may be counted on the bits of x: they must be powers of
    // two (reciprocals of steps, `recip`, need not be), and points of each block normal numbers.
    bool serves_bits(const float* factors, int64_t n) const {
        int32_t low = kInfinity, high = 0, mantissas = 0;
        for (int64_t i = 0; i < n; ++i) {
            int32_t bits = to_bits(factors[i]);
            mantissas |= bits & 0x7FFFFF;
            low = bits < low ? bits : low;
            high = bits > high ? bits : high;
        }
        return mantissas == 0 && low >= 1 << 23 && high >> 23 <= (first >> 7) + 126;
    }

    alignas(64) int16_t entries[kEntries];
    int32_t first;  // point, as a bfloat16
    int shift;
    bool serves;
};

#if defined(__AVX512F__)
// The loops of wide.h for the elements of any format, which take long to compile: each kind of loop in a
// unit of its own. table: null, or what serves the format's codes.
void wide_codes_of(const Spec& spec, const WideChunk& c, const CodeTable* table, bool of_words,
                   uint8_t* codes);                                         // codes.cpp
void wide_values_of(const Spec& spec, const WideChunk& c, void* to);        // values.cpp
#endif

namespace {

#if defined(__AVX512BW__)
struct WideTable : WideMinifloats {
    template <Dtype D>
    static constexpr bool kOfWords = D == Dtype::bf16;

    WideTable(const Spec& spec, const CodeTable& table, bool of_words)
        : WideMinifloats(spec, true), of_words(of_words), low(_mm512_load_si512(table.entries)),
          high(_mm512_load_si512(table.entries + 32)),
          first(_mm512_set1_epi16(static_cast<int16_t>(table.first))),
          last(_mm512_set1_epi16(static_cast<int16_t>((32 << table.shift) - 1))),
          up(_mm512_set1_epi16(static_cast<int16_t>((1 << table.shift) - 1))),
          apart(_mm_cvtsi32_si128(table.shift)) {}

    // Patterns of numbers whose magnitudes, as bfloat16, lie so far above the first point.
    BLOCKSCALE_INLINE __m512i look_up(__m512i above, __m512i signs) const {
        above = _mm512_min_epu16(above, last);
        __m512i below = _mm512_srl_epi16(above, apart);
        __m512i entry =
            _mm512_add_epi16(below, _mm512_srl_epi16(_mm512_add_epi16(above, up), apart));
        __m512i code = _mm512_permutex2var_epi16(low, entry, high);
        return _mm512_ternarylogic_epi32(magnitude, code, _mm512_srl_epi16(signs, word_right), 0xCA);
    }

    BLOCKSCALE_INLINE static __m512i together(__m512i front, __m512i back) {
        return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0),
                                        _mm512_packus_epi16(front, back));
    }

    // The upper halves of 32 floats, whose last bit also says that the lower ones are not 0.
    BLOCKSCALE_INLINE __m512i half_of(const __m512* y) const {
        __m512i a = _mm512_castps_si512(y[0]), b = _mm512_castps_si512(y[1]);
        __m512i upper = _mm512_permutex2var_epi16(a, odd_words, b);
        __m512i lower = _mm512_permutex2var_epi16(a, even_words, b);
        lower = _mm512_min_epu16(lower, _mm512_set1_epi16(1));
        const __m512i unsigned_bits = _mm512_set1_epi16(INT16_MAX);
        __m512i size = _mm512_ternarylogic_epi32(upper, lower, unsigned_bits, 0xA8);  // (a | b) & c
        return look_up(_mm512_subs_epu16(size, first), upper);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512*) const {
        return together(half_of(y), half_of(y + 2));
    }

    // 32 bfloat16 times a power of two.
    BLOCKSCALE_INLINE __m512i half_of(const uint16_t* x, __m512 factor) const {
        __m512i field = _mm512_castps_si512(factor), one = _mm512_set1_epi16(0x3F80);
        field = _mm512_or_si512(field, _mm512_srli_epi32(field, 16));
        __m512i from = _mm512_sub_epi16(_mm512_add_epi16(first, one), field);
        __m512i bits = _mm512_loadu_si512(x);
        __m512i size = _mm512_and_si512(bits, _mm512_set1_epi16(INT16_MAX));
        return look_up(_mm512_subs_epu16(size, from), bits);
    }

    BLOCKSCALE_INLINE __m512i bytes(const uint16_t* x, __m512 front, __m512 back) const {
        return together(half_of(x, front), half_of(x + 32, back));
    }

    bool of_words;
    __m512i low, high, first, last, up;
    __m128i apart;
};

// Places in a table that is searched in STEPS steps.
template <int STEPS>
struct WideCodebook {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = false;

    explicit WideCodebook(const Codebook& book)
        : book(book), last(_mm512_load_si512(book.thresholds)), third(from_entry(1)),
          second(from_entry(3)), first(_mm512_set1_epi32(book.thresholds[7])),
          bytes16(_mm512_broadcast_i32x4(_mm512_cvtepi32_epi8(_mm512_load_si512(book.codes)))) {}

    // The 15 thresholds from entry i on.
    BLOCKSCALE_INLINE __m512i from_entry(int i) const {
        const __m512i places =
            _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        return _mm512_permutexvar_epi32(_mm512_add_epi32(places, _mm512_set1_epi32(i)), last);
    }

    // See Codebook: 4 steps among 15 thresholds, and more among those of each step.
    BLOCKSCALE_INLINE __m512i ranks(__m512 y) const {
        __m512i bits = _mm512_castps_si512(  // NaN to 0
            _mm512_fixupimm_ps(y, y, _mm512_set1_epi32(0x11111188), 0));
        __m512i value = _mm512_ternarylogic_epi32(  // ordered(): bits ^ (sign & INT32_MAX)
            bits, _mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT32_MAX), 0x78);
        __m512i rank = _mm512_maskz_mov_epi32(_mm512_cmpgt_epi32_mask(value, first),
                                              _mm512_set1_epi32(8));
        auto step = [&](__m512i thresholds, int bit) BLOCKSCALE_INLINE_LAMBDA {
            __mmask16 above =
                _mm512_cmpgt_epi32_mask(value, _mm512_permutexvar_epi32(rank, thresholds));
            rank = _mm512_mask_or_epi32(rank, above, rank, _mm512_set1_epi32(bit));
        };
        step(second, 4);
        step(third, 2);
        step(last, 1);
#pragma GCC unroll 4
        for (int s = 4; s < STEPS; ++s) {
            __m512i middle = look_up(book.thresholds + (1 << s), s, rank);
            __mmask16 above = _mm512_cmpgt_epi32_mask(value, middle);
            rank = _mm512_add_epi32(rank, rank);
            rank = _mm512_mask_or_epi32(rank, above, rank, _mm512_set1_epi32(1));
        }
        return rank;
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512*) const {
        __m512i rank[4];
        for (int j = 0; j < 4; ++j) rank[j] = ranks(y[j]);
        __m512i front = _mm512_packs_epi32(rank[0], rank[1]);
        __m512i back = _mm512_packs_epi32(rank[2], rank[3]);
        if constexpr (STEPS == 4)
            return _mm512_shuffle_epi8(bytes16, in_order(_mm512_packus_epi16(front, back)));
        return in_order(_mm512_packus_epi16(look_up_words(book.words, STEPS, front),
                                            look_up_words(book.words, STEPS, back)));
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes&, __m512) const {
        return look_up(book.codes, STEPS, ranks(y));
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512) const {
        return _mm512_castsi512_ps(look_up(book.ranked, STEPS, ranks(y)));
    }

    const Codebook& book;
    __m512i last, third, second, first;  // the thresholds that the fourth step meets, the third …
    __m512i bytes16;                     // codes by rank
};

BLOCKSCALE_INLINE __mmask64 together16(const __mmask16* masks) {
    __mmask32 front = _mm512_kunpackw(masks[1], masks[0]);
    return _mm512_kunpackd(_mm512_kunpackw(masks[3], masks[2]), front);
}

// Places in a table by its cells. finite: there is no NaN among the numbers to come.
template <bool MIRRORED>
struct WideCells : WideCodebook<4> {
    WideCells(const Codebook& book, bool finite)
        : WideCodebook<4>(book), finite(finite), bound(_mm512_set1_ps(book.cells.bound)),
          slope(_mm512_set1_ps(book.cells.slope)), magic(_mm512_set1_ps(kMagic)),
          threshold{_mm512_load_ps(book.cells.thresholds), _mm512_load_ps(book.cells.thresholds + 16)},
          below{_mm512_load_ps(book.cells.below), _mm512_load_ps(book.cells.below + 16)},
          above{_mm512_load_ps(book.cells.above), _mm512_load_ps(book.cells.above + 16)},
          cell_ranks(_mm512_load_si512(book.cells.ranks)),
          cell_codes(_mm512_broadcast_i32x4(
              _mm_load_si128(reinterpret_cast<const __m128i*>(book.cells.codes)))) {
        alignas(64) int16_t word[32];
        for (int i = 0; i < 32; ++i) word[i] = static_cast<int16_t>(2 * i);
        even_words = _mm512_load_si512(word);
        sign = _mm512_set1_epi8(static_cast<char>(book.cells.sign));
    }

    // NaN to 0.
    BLOCKSCALE_INLINE __m512 number(__m512 y) const {
        return finite ? y : _mm512_fixupimm_ps(y, y, _mm512_set1_epi32(0x11111188), 0);
    }

    // The cell of a number, as an index in the low bits, and whether it is above its threshold.
    BLOCKSCALE_INLINE __m512i cell_of(__m512 y, __mmask16* over) const {
        // The smaller of |y| and the bound, with y's sign or without any.
        __m512 z = _mm512_range_ps(y, bound, MIRRORED ? 0b1010 : 0b0010);
        __m512i cell = _mm512_castps_si512(_mm512_fmadd_ps(z, slope, magic));
        __m512 limit = _mm512_permutex2var_ps(threshold[0], cell, threshold[1]);
        *over = _mm512_cmp_ps_mask(z, limit, _CMP_GT_OQ);
        return cell;
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512*) const {
        __m512i cell[4], half[2];
        __mmask16 over[4], minus[4];
        for (int j = 0; j < 4; ++j) {
            __m512 z = number(y[j]);
            cell[j] = cell_of(z, over + j);
            minus[j] = _mm512_movepi32_mask(_mm512_castps_si512(z));
        }
        for (int j = 0; j < 2; ++j) {
            __m512i words = _mm512_permutex2var_epi16(cell[2 * j], even_words, cell[2 * j + 1]);
            half[j] = _mm512_permutexvar_epi16(words, cell_ranks);
        }
        __m512i rank = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0),
                                                _mm512_packus_epi16(half[0], half[1]));
        rank = _mm512_mask_add_epi8(rank, together16(over), rank, _mm512_set1_epi8(1));
        __m512i code = _mm512_shuffle_epi8(cell_codes, rank);
        if constexpr (!MIRRORED) return code;
        return _mm512_mask_add_epi8(code, together16(minus), code, sign);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512) const {
        y = number(y);
        __mmask16 over;
        __m512i cell = cell_of(y, &over);
        __m512 value = _mm512_permutex2var_ps(below[0], cell, below[1]);
        value = _mm512_mask_mov_ps(value, over, _mm512_permutex2var_ps(above[0], cell, above[1]));
        return MIRRORED ? with_sign_of(value, y) : value;
    }

    bool finite;
    __m512 bound, slope, magic, threshold[2], below[2], above[2];
    __m512i cell_ranks, cell_codes, even_words, sign;
};

// Places in a table of powers. finite: there is no NaN among the numbers to come.
struct WideOctaves {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = false;

    WideOctaves(const Octaves& o, bool finite)
        : finite(finite), entries(_mm512_load_si512(o.entries)), mantissas(_mm512_load_si512(o.mantissas)),
          first(_mm512_set1_epi32(o.first)), last(_mm512_set1_epi32(o.last)),
          base(_mm512_set1_epi32(o.base)), sign(_mm512_set1_epi32(o.sign)),
          last_byte(_mm512_set1_epi8(static_cast<char>(o.last))),
          sign_byte(_mm512_set1_epi8(static_cast<char>(o.sign))), shift(_mm_cvtsi32_si128(o.shift)) {}

    // NaN to 0.
    BLOCKSCALE_INLINE __m512i number(__m512 y) const {
        if (!finite) y = _mm512_fixupimm_ps(y, y, _mm512_set1_epi32(0x11111188), 0);
        return _mm512_castps_si512(y);
    }

    // The code of a magnitude above the first threshold, but for its limits.
    BLOCKSCALE_INLINE __m512i counted(__m512i bits) const {
        __m512i entry = _mm512_permutexvar_epi32(_mm512_srli_epi32(bits, Octaves::kRight), entries);
        return _mm512_sra_epi32(_mm512_add_epi32(bits, entry), shift);
    }

    // The bits of the values of codes above 0.
    static BLOCKSCALE_INLINE __m512i bits_of(__m512i code, __m512i base, __m512i mantissas, __m128i shift) {
        __m512i n = _mm512_add_epi32(code, base);
        return _mm512_ternarylogic_epi32(  // (a & b) | c
            _mm512_sll_epi32(n, shift), _mm512_set1_epi32(kInfinity),
            _mm512_permutexvar_epi32(n, mantissas), 0xEA);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512*) const {
        __m512i code[4];
        __mmask16 some[4], minus[4];
        for (int j = 0; j < 4; ++j) {
            __m512i bits = number(y[j]);
            minus[j] = _mm512_movepi32_mask(bits);
            bits = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX));
            some[j] = _mm512_cmpgt_epi32_mask(bits, first);
            code[j] = counted(bits);
        }
        __m512i front = _mm512_packs_epi32(code[0], code[1]), back = _mm512_packs_epi32(code[2], code[3]);
        __m512i all = in_order(_mm512_packs_epi16(front, back));
        all = _mm512_min_epi8(_mm512_max_epi8(all, _mm512_set1_epi8(1)), last_byte);
        all = _mm512_maskz_mov_epi8(together16(some), all);
        return _mm512_mask_add_epi8(all, together16(minus), all, sign_byte);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes&, __m512) const {
        __m512i bits = number(y);
        __mmask16 minus = _mm512_movepi32_mask(bits);
        __m512i code = magnitude(bits);
        return _mm512_mask_or_epi32(code, minus, code, sign);
    }

    // The code of a magnitude.
    BLOCKSCALE_INLINE __m512i magnitude(__m512i bits) const {
        bits = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX));
        __m512i code = _mm512_max_epi32(counted(bits), _mm512_set1_epi32(1));
        return _mm512_maskz_min_epi32(_mm512_cmpgt_epi32_mask(bits, first), code, last);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512) const {
        __m512i bits = number(y), code = magnitude(bits);
        __mmask16 some = _mm512_test_epi32_mask(code, code);
        __m512i value = _mm512_maskz_mov_epi32(some, bits_of(code, base, mantissas, shift));
        return with_sign_of(_mm512_castsi512_ps(value), _mm512_castsi512_ps(bits));
    }

    bool finite;
    __m512i entries, mantissas, first, last, base, sign, last_byte, sign_byte;
    __m128i shift;
};
#endif

#if defined(__AVX512F__)
// Run f with what makes the elements of a codebook.
template <class F>
inline void with_places(const Spec& spec, bool finite, F f) {
    const Codebook& book = *spec.element.book;
    if (book.octaves.serve) return f([&] { return WideOctaves(book.octaves, finite); });
    if (book.cells.serve && book.cells.mirrored) return f([&] { return WideCells<true>(book, finite); });
    if (book.cells.serve) return f([&] { return WideCells<false>(book, finite); });
    if (book.steps == 4) return f([&] { return WideCodebook<4>(book); });
    if (book.steps == 6) return f([&] { return WideCodebook<6>(book); });
    f([&] { return WideCodebook<8>(book); });
}

// Run f with what makes the elements of integers, by what their zero points are.
template <class F>
inline void with_integers(const Spec& spec, F f) {
    if (spec.zero != Stored::none) return f([&] { return WideIntegers<Zeros::moved>(spec); });
    if (spec.asym) return f([&] { return WideIntegers<Zeros::added>(spec); });
    f([&] { return WideIntegers<Zeros::none>(spec); });
}
#endif

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
