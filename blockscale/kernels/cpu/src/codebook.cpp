#include "codebook.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace blockscale {

namespace {

// float32 as integers in the same order, -0 below 0.
int32_t ordered(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits ^ ((bits >> 31) & INT32_MAX);
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
    book->steps = std::max(bits, 4);
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
    return book;
}

}  // namespace blockscale
