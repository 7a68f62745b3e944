// What the fused loops of wide.h make of numbers in steps, for each family: the codes of 64 of them or
// of 16, or the values of those codes.
#pragma once

#include "../simd/table.h"
#include "encode.h"
#include "wide.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// 4 x 16 dwords, each the four bytes of one 128-bit lane -> the same in the order of the elements.
BLOCKSCALE_INLINE __m512i in_order(__m512i lanes) {
    const __m512i from =
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(from, lanes);
}

// MOVED: zero points are no integers and are added before rounding; NaN then counts as 0.
template <bool MOVED>
struct WideIntegers {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = true;  // may round by chance

    explicit WideIntegers(const Spec& spec)
        : low(_mm512_set1_ps(spec.element.low)), high(_mm512_set1_ps(spec.element.high)),
          mask(_mm512_set1_epi32((1 << spec.element.bits) - 1)), magic(_mm512_set1_ps(kMagic)),
          byte_low(_mm512_set1_epi8(static_cast<char>(static_cast<int>(spec.element.low)))),
          byte_high(_mm512_set1_epi8(static_cast<char>(static_cast<int>(spec.element.high)))),
          byte_mask(_mm512_set1_epi8(static_cast<char>((1 << spec.element.bits) - 1))),
          is_signed(spec.element.is_signed), adds(adds_zeros(spec)) {}

    static BLOCKSCALE_INLINE __m512 moved(__m512 y, __m512 zero) {
        if constexpr (!MOVED) return y;
        return _mm512_add_ps(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, y, _CMP_ORD_Q), y), zero);
    }

    // 1.5 * 2^23 + the whole steps, whose low bits are the steps.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 sum(__m512 y, const Lanes& lanes, __m512 u) const {
        y = moved(y, lanes.zero);
        y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, y, _CMP_ORD_Q), y);
        __m512 below = low, above = high;
        if (!MOVED && adds) {
            below = _mm512_sub_ps(low, lanes.zero);
            above = _mm512_sub_ps(high, lanes.zero);
        }
        __m512 t = _mm512_min_ps(_mm512_max_ps(y, below), above);
        if constexpr (DRAWN) t = with_sign_of(by_chance(_mm512_abs_ps(t), u), t);
        return _mm512_add_ps(t, magic);
    }

    // 64 codes as bytes. Packing saturates: all that is needed before is that the conversion does not
    // overflow.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512* zero, const __m512* u) const {
        __m512i steps[4];
        for (int j = 0; j < 4; ++j) {
            // NaN to 0; then the smaller of |t| and 2^20, with the sign of t.
            __m512 t = moved(y[j], zero[j]);
            t = _mm512_fixupimm_ps(t, t, _mm512_set1_epi32(0x11111188), 0);
            if constexpr (DRAWN) t = with_sign_of(by_chance(_mm512_abs_ps(t), u[j]), t);
            t = _mm512_range_ps(t, _mm512_set1_ps(0x1p20f), 0b0010);
            steps[j] = _mm512_cvtps_epi32(t);
            if (!MOVED && adds) steps[j] = _mm512_add_epi32(steps[j], _mm512_cvtps_epi32(zero[j]));
        }
        __m512i front = _mm512_packs_epi32(steps[0], steps[1]);
        __m512i back = _mm512_packs_epi32(steps[2], steps[3]);
        __m512i code = in_order(is_signed ? _mm512_packs_epi16(front, back)
                                          : _mm512_packus_epi16(front, back));
        if (is_signed) {
            code = _mm512_max_epi8(_mm512_min_epi8(code, byte_high), byte_low);
        } else {
            code = _mm512_min_epu8(code, byte_high);
        }
        return _mm512_and_si512(code, byte_mask);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes& lanes, __m512 u) const {
        __m512 steps = sum<DRAWN>(y, lanes, u);
        if (!MOVED && adds) steps = _mm512_add_ps(steps, lanes.zero);
        return _mm512_and_si512(_mm512_castps_si512(steps), mask);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes& lanes, __m512 u) const {
        __m512 steps = _mm512_sub_ps(sum<DRAWN>(y, lanes, u), magic);
        if constexpr (MOVED) return _mm512_sub_ps(steps, lanes.zero);
        return steps;
    }

    __m512 low, high;
    __m512i mask;
    __m512 magic;
    __m512i byte_low, byte_high, byte_mask;  // of elements up to 8 bits
    bool is_signed, adds;  // zero points are added to codes
};

// See MinifloatLimits in encode.h for the idea.
struct WideMinifloats {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = true;  // may round by chance

    // finite: there is no NaN among the numbers to come.
    WideMinifloats(const Spec& spec, bool finite) : finite(finite) {
        const Element& e = spec.element;
        mantissa_free = e.mantissa_bits == 0;
        int shift = 23 - e.mantissa_bits;
        int32_t smallest = (1 - e.bias + 127) << 23;
        largest = _mm512_set1_ps(e.high);
        lowest = _mm512_set1_epi32(smallest);
        magic = _mm512_set1_epi32((shift << 23) | 0x400000);
        right = _mm_cvtsi32_si128(shift);
        // The field of the smallest normal number counts as 0 steps: taken off within `counting`, as
        // an even number of them, so that ties still go to even.
        int32_t fields = smallest >> shift, odd = fields & 1;
        rebias = _mm512_set1_epi32(fields);
        counting = _mm512_add_epi32(magic, _mm512_set1_epi32(-(fields - odd) & 0xFF));
        one_more = _mm512_set1_epi32(odd);
        sign_right = _mm_cvtsi32_si128(32 - e.bits);
        sign = _mm512_set1_epi32(1 << (e.bits - 1));
        nan_code = _mm512_set1_epi32(e.nan_code < 0 ? 0 : e.nan_code);
        nan = _mm512_set1_ps(e.nan_code < 0 ? 0.0f : from_bits(0x7FC00000));
        nan_byte = _mm512_set1_epi8(static_cast<char>(e.nan_code < 0 ? 0 : e.nan_code));
        magnitude = _mm512_set1_epi16(static_cast<int16_t>((1 << (e.bits - 1)) - 1));
        word_right = _mm_cvtsi32_si128(16 - e.bits);
        alignas(64) int16_t word[32];
        for (int i = 0; i < 32; ++i) word[i] = static_cast<int16_t>(2 * i);
        even_words = _mm512_load_si512(word);
        odd_words = _mm512_add_epi16(even_words, _mm512_set1_epi16(1));
        to_mantissa = _mm512_set1_epi32(
            static_cast<int32_t>((254u + e.mantissa_bits) << 23));
        from_mantissa = _mm512_set1_ps(from_bits((127 - e.mantissa_bits) << 23));
    }

    BLOCKSCALE_INLINE __m512i field(__m512 size) const {
        __m512i bits = _mm512_castps_si512(size);
        return _mm512_max_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(kInfinity)), lowest);
    }

    // The smaller of |y| and the largest value; NaN gives the latter.
    BLOCKSCALE_INLINE __m512 size(__m512 y) const { return _mm512_range_ps(y, largest, 0b1010); }

    // The magnitude's code in the low byte of each lane, whatever is above it.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i magnitudes(__m512 y, __m512 u) const {
        __m512 a = size(y);
        __m512i binade = field(a), steps;
        if constexpr (DRAWN) {
            __m512i inverse = _mm512_sub_epi32(to_mantissa, binade);
            steps = _mm512_cvttps_epi32(
                by_chance(_mm512_mul_ps(a, _mm512_castsi512_ps(inverse)), u));
            steps = _mm512_sub_epi32(steps, rebias);
        } else {  // in the low byte; what is above it is cut off
            __m512i big = _mm512_add_epi32(binade, counting);
            steps = _mm512_castps_si512(_mm512_add_ps(a, _mm512_castsi512_ps(big)));
            if (mantissa_free) steps = _mm512_sub_epi32(steps, one_more);
        }
        return _mm512_add_epi32(steps, _mm512_srl_epi32(binade, right));
    }

    // 64 codes as bytes.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512* u) const {
        __m512i half[2];
        for (int j = 0; j < 4; j += 2) {
            __m512i low = _mm512_permutex2var_epi16(magnitudes<DRAWN>(y[j], u[j]), even_words,
                                                    magnitudes<DRAWN>(y[j + 1], u[j + 1]));
            __m512i sign = _mm512_permutex2var_epi16(_mm512_castps_si512(y[j]), odd_words,
                                                     _mm512_castps_si512(y[j + 1]));
            sign = _mm512_srl_epi16(sign, word_right);
            half[j / 2] = _mm512_ternarylogic_epi32(magnitude, low, sign, 0xCA);  // magnitude ? low : sign
        }
        __m512i code = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0),
                                                _mm512_packus_epi16(half[0], half[1]));
        if (finite) return code;
        __mmask16 odd[4];
        for (int j = 0; j < 4; ++j) odd[j] = _mm512_cmp_ps_mask(y[j], y[j], _CMP_UNORD_Q);
        __mmask32 front = _mm512_kunpackw(odd[1], odd[0]), back = _mm512_kunpackw(odd[3], odd[2]);
        return _mm512_mask_mov_epi8(code, _mm512_kunpackd(back, front), nan_byte);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes&, __m512 u) const {
        __m512i code = magnitudes<DRAWN>(y, u);
        __m512i high = _mm512_srl_epi32(_mm512_castps_si512(y), sign_right);
        code = _mm512_ternarylogic_epi32(code, high, sign, 0xF8);
        return _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), nan_code);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512 u) const {
        __m512 a = size(y), value;
        __m512i binade = field(a);
        if constexpr (DRAWN) {
            __m512i inverse = _mm512_sub_epi32(to_mantissa, binade);
            value = by_chance(_mm512_mul_ps(a, _mm512_castsi512_ps(inverse)), u);
            value = _mm512_mul_ps(_mm512_mul_ps(value, from_mantissa), _mm512_castsi512_ps(binade));
        } else {
            __m512 big = _mm512_castsi512_ps(_mm512_add_epi32(binade, magic));
            value = _mm512_sub_ps(_mm512_add_ps(a, big), big);
        }
        value = with_sign_of(value, y);
        return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), nan);
    }

    __m512 largest, nan, from_mantissa;
    __m512i lowest, magic, rebias, counting, one_more, sign, nan_code, to_mantissa;
    __m512i nan_byte, magnitude, even_words, odd_words;
    bool mantissa_free;  // without mantissa bits `one_more` may be 1
    bool finite;
    __m128i right, sign_right, word_right;
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

    static BLOCKSCALE_INLINE __mmask64 together(const __mmask16* masks) {
        __mmask32 front = _mm512_kunpackw(masks[1], masks[0]);
        return _mm512_kunpackd(_mm512_kunpackw(masks[3], masks[2]), front);
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
        rank = _mm512_mask_add_epi8(rank, together(over), rank, _mm512_set1_epi8(1));
        __m512i code = _mm512_shuffle_epi8(cell_codes, rank);
        if constexpr (!MIRRORED) return code;
        return _mm512_mask_add_epi8(code, together(minus), code, sign);
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

// 0 below 0, else 1: y decides, not x, which may be so small that y is -0.
struct WideSigns {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = false;

    static BLOCKSCALE_INLINE __mmask16 below(__m512 y) {
        return _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LT_OQ);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512*) const {
        __mmask32 front = _mm512_kunpackw(below(y[1]), below(y[0]));
        __mmask32 back = _mm512_kunpackw(below(y[3]), below(y[2]));
        const __m512i one = _mm512_set1_epi8(1);
        return _mm512_mask_mov_epi8(one, _mm512_kunpackd(back, front), _mm512_setzero_si512());
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes&, __m512) const {
        return _mm512_mask_mov_epi32(_mm512_set1_epi32(1), below(y), _mm512_setzero_si512());
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512) const {
        return _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), below(y), _mm512_set1_ps(-1.0f));
    }
};

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
