// SPDX-License-Identifier: BSD-3-Clause
#include "codebook.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace blockscale {

namespace {

int32_t bits_of(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// float32 as integers in the same order, -0 below 0.
int32_t ordered(float value) { return bits_of(value) ^ ((bits_of(value) >> 31) & INT32_MAX); }

// The index of y's cell.
int cell_of(const Cells& cells, float y) {
    float sum = std::fma(y, cells.slope, 12582912.0f);
    int32_t bits;
    std::memcpy(&bits, &sum, 4);
    return bits & (Cells::kCount - 1);
}

// Whether negative values and thresholds are those of positive ones with another sign.
bool is_mirrored(int bits, const std::vector<float>& values, const std::vector<int>& order,
                 const std::vector<float>& thresholds) {
    int count = static_cast<int>(order.size()), half = count / 2, sign = 1 << (bits - 1);
    if (count % 2 || bits < 2 || values[order[half]] != 0.0f || std::signbit(values[order[half]]))
        return false;
    bool mirrored = values[order[half - 1]] == 0.0f;
    for (int i = 0; i < half; ++i)
        mirrored &= order[half + i] < sign && order[half - 1 - i] == (order[half + i] | sign);
    for (int i = 0; i < half - 1; ++i)
        mirrored &= thresholds[half - 2 - i] == -std::nextafter(thresholds[half + i], INFINITY);
    return mirrored;
}

void fill_cells(const std::vector<float>& values, const std::vector<int>& order,
                const std::vector<float>& thresholds, Cells& cells) {
    int count = static_cast<int>(thresholds.size());
    float most = std::max(std::fabs(thresholds.front()), std::fabs(thresholds.back()));
    cells.bound = std::nextafter(most, INFINITY);
    int last = cells.mirrored ? Cells::kCount - 1 : Cells::kCount / 2 - 1;  // index of that
    cells.slope = static_cast<float>(last) / cells.bound;
    cells.serve = most >= 0x1p-60f && most <= 0x1p60f;
    if (!cells.serve) return;
    // Indices of cells by the numbers in them: those of negative ones are the upper half.
    int first = cells.mirrored ? 0 : -last, next = 0;
    for (int i = first; i <= last; ++i) {
        int cell = i & (Cells::kCount - 1);
        bool divided = next < count && cell_of(cells, thresholds[next]) == cell;
        cells.thresholds[cell] = divided ? thresholds[next] : INFINITY;
        cells.ranks[cell] = next;
        cells.below[cell] = values[order[next]];
        cells.above[cell] = values[order[next + divided]];
        next += divided;
    }
    cells.serve = next == count;  // else two lie in one
    for (int rank = 0; rank <= count; ++rank) cells.codes[rank] = order[rank];
}

// Cells for a table of up to 16 values, where there are any.
void make_cells(int bits, const std::vector<float>& values, const std::vector<int>& order,
                const std::vector<float>& thresholds, Cells& cells) {
    if (order.size() > 16) return;
    cells.sign = 1 << (bits - 1);
    cells.mirrored = is_mirrored(bits, values, order, thresholds);
    size_t half = order.size() / 2;
    if (cells.mirrored && half > 1)
        return fill_cells(values, {order.begin() + half, order.end()},
                          {thresholds.begin() + half, thresholds.end()}, cells);
    bool two_zeros = false;  // which comparing floats does not tell apart
    for (size_t i = 1; i < order.size(); ++i)
        two_zeros |= values[order[i]] == 0.0f && values[order[i - 1]] == 0.0f;
    if (!two_zeros) fill_cells(values, order, thresholds, cells);
}

// The cells of an octave, from the thresholds above values [first, first + count], the first of them
// being the octave's own power of two. False if two lie in one.
bool fill_octave(const std::vector<float>& above, int first, int count, Octaves& to) {
    constexpr int32_t kFraction = 0x7FFFFF, kWidth = 1 << Octaves::kRight;
    int next = 0;
    for (int cell = 0; cell < Octaves::kCells; ++cell) {
        int32_t fraction = next < count ? bits_of(above[first + next]) & kFraction : kFraction;
        bool divided = next < count && fraction / kWidth == cell;
        to.entries[cell] = divided ? ((next + 1) << to.shift) - (fraction + 1)
                                   : (next << to.shift) + kWidth / 2 - cell * kWidth;
        next += divided;
    }
    return next == count;
}

// Octaves for a mirrored table whose magnitudes, in the order of their codes, are 0 and such values.
void make_octaves(const std::vector<float>& values, const std::vector<float>& thresholds, int fraction_bits,
                  Octaves& to) {
    int half = static_cast<int>(values.size()) / 2, each = 1 << fraction_bits;
    std::vector<float> above(thresholds.begin() + half, thresholds.end());  // [c]: between c and c + 1
    if (half < 3 * each) return;
    for (int c = 1; c < half; ++c) {
        bool normal = values[c] >= 0x1p-100f && values[c] <= 0x1p100f && values[c] > values[c - 1];
        bool regular = c + each >= half || values[c + each] == 2 * values[c];
        regular &= c + each >= half - 1 || above[c + each] == 2 * above[c];
        if (!normal || !regular) return;
    }
    int start = 1;
    while (start < each && bits_of(values[start]) & 0x7FFFFF) ++start;  // the first power of two
    to.shift = 23 - fraction_bits;
    if (bits_of(values[start]) & 0x7FFFFF || !fill_octave(above, start, each, to)) return;
    to.base = (bits_of(values[start]) >> to.shift) - start;
    for (int cell = 0; cell < Octaves::kCells; ++cell) {
        to.entries[cell] -= to.base << to.shift;
        to.mantissas[cell] = bits_of(values[start + cell % each]) & 0x7FFFFF;
    }
    to.first = bits_of(above[0]);
    to.last = half - 1;
    to.sign = half;
    to.serve = true;
}

}  // namespace

std::shared_ptr<const Codebook> make_codebook(int bits, const std::vector<float>& values,
                                              const std::vector<int>& order,
                                              const std::vector<float>& thresholds) {
    size_t count = order.size();
    bool fits = bits >= 1 && bits <= 8 && values.size() == size_t{1} << bits && count >= 2 &&
                count <= values.size() && thresholds.size() == count - 1 &&
                std::all_of(order.begin(), order.end(), [&](int code) {
                    return code >= 0 && code < static_cast<int>(values.size());
                });
    if (!fits) throw std::invalid_argument("Element: a codebook's lists do not fit one another");
    auto book = std::make_shared<Codebook>();
    book->steps = bits <= 4 ? 4 : bits <= 6 ? 6 : 8;
    int size = 1 << book->steps;
    std::fill_n(book->thresholds, Codebook::kMost, INT32_MAX);  // nothing is above
    auto at = [&](int i) { return i < static_cast<int>(count) - 1 ? ordered(thresholds[i]) : INT32_MAX; };
    for (int i = 0; i < 15; ++i) book->thresholds[i] = at((i + 1) * (size / 16) - 1);
    for (int step = 4; step < book->steps; ++step)
        for (int part = 0; part < 1 << step; ++part)
            book->thresholds[(1 << step) + part] = at((2 * part + 1) * (size >> (step + 1)) - 1);
    for (size_t rank = 0; rank < count; ++rank) {
        book->codes[rank] = book->words[rank] = order[rank];
        book->ranked[rank] = values[order[rank]];
    }
    std::copy(values.begin(), values.end(), book->values);
    book->smallest = book->ranked[0];
    book->largest = book->ranked[count - 1];
    make_cells(bits, values, order, thresholds, book->cells);
    bool mirrored = count == values.size() && is_mirrored(bits, values, order, thresholds);
    for (int f = 1; mirrored && f <= 3 && !book->octaves.serve; ++f)
        make_octaves(values, thresholds, f, book->octaves);
    return book;
}

}  // namespace blockscale
