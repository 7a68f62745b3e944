#include "native_format.h"

#include <algorithm>
#include <stdexcept>

namespace blockscale {

NativeFormat::NativeFormat(const std::vector<double>& n, const std::vector<int64_t>& block,
                           int64_t rest, std::shared_ptr<NativeFormat> inner)
    : block_(block), rest_(rest), inner_(std::move(inner)) {
    if (n.size() != 25) throw std::invalid_argument("a format has 25 numbers");
    auto integer = [&](int i) { return static_cast<int>(n[i]); };
    auto real = [&](int i) { return static_cast<float>(n[i]); };
    Element element{Family(integer(0)), integer(1), n[2] != 0, real(3), real(4), integer(5),
                    integer(6), real(7), integer(8), integer(9), integer(10)};
    spec_ = std::make_shared<Spec>(
        Spec{element, Statistic(integer(11)), ScaleKind(integer(12)), Rule(integer(13)),
             integer(14), integer(15), integer(16), real(17), real(18), real(19), n[20] != 0,
             n[21] != 0, n[22] != 0, Rounding(integer(23)), inner_ ? inner_->spec_ : nullptr,
             real(24)});
}

std::vector<int64_t> NativeFormat::sizes(size_t rank) const {
    std::vector<int64_t> sizes(rank, rest_);
    for (size_t i = 0; i + 1 < block_.size(); i += 2) {
        int64_t dim = block_[i] < 0 ? block_[i] + static_cast<int64_t>(rank) : block_[i];
        if (dim < 0 || dim >= static_cast<int64_t>(rank))
            throw std::invalid_argument("the block needs a dimension that the tensor lacks");
        sizes[dim] = block_[i + 1];
    }
    return sizes;
}

Grid NativeFormat::grid(const std::vector<int64_t>& shape) const {
    return make_grid(shape.data(), sizes(shape.size()).data(), static_cast<int>(shape.size()));
}

std::vector<int64_t> NativeFormat::scale_shape(const std::vector<int64_t>& shape) const {
    std::vector<int64_t> found = sizes(shape.size());
    for (size_t i = 0; i < shape.size(); ++i)
        found[i] = found[i] == 0 ? 1 : (shape[i] + found[i] - 1) / found[i];
    return found;
}

Layout NativeFormat::layout(const std::vector<int64_t>& shape) const {
    return {grid(shape), inner_ ? inner_->grid(scale_shape(shape)) : Grid{1, 1, 0, 1, 1, 1}};
}

Layout NativeFormat::matrix(int64_t rows, int64_t columns) const {
    std::vector<int64_t> shape{rows, columns}, block = sizes(2);
    for (int i : {0, 1}) block[i] = block[i] == 0 ? shape[i] : std::min(block[i], shape[i]);
    Grid inner = inner_ ? inner_->grid(scale_shape(shape)) : Grid{1, 1, 0, 1, 1, 1};
    return {{1, rows, columns, 1, std::max<int64_t>(block[0], 1), std::max<int64_t>(block[1], 1)},
            inner};
}

}  // namespace blockscale
