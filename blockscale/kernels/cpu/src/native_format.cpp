// SPDX-License-Identifier: BSD-3-Clause
#include "native_format.h"

#include <algorithm>
#include <stdexcept>

namespace blockscale {

NativeFormat::NativeFormat(const Spec& spec, const std::vector<int64_t>& block, int64_t rest,
                           std::shared_ptr<NativeFormat> inner)
    : spec_(spec), block_(block), rest_(rest), inner_(std::move(inner)) {
    if (!inner_ != !spec_.inner)
        throw std::invalid_argument("a format has `inner` where its numbers have it, and only there");
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

OwnedGrid NativeFormat::grid(const std::vector<int64_t>& shape) const {
    return make_grid(shape, sizes(shape.size()));
}

std::vector<int64_t> NativeFormat::scale_shape(const std::vector<int64_t>& shape) const {
    std::vector<int64_t> found = sizes(shape.size());
    for (size_t i = 0; i < shape.size(); ++i)
        found[i] = found[i] == 0 ? 1 : (shape[i] + found[i] - 1) / found[i];
    return found;
}

OwnedLayout NativeFormat::layout(const std::vector<int64_t>& shape) const {
    return {grid(shape), inner_ ? inner_->grid(scale_shape(shape)) : OwnedGrid()};
}

OwnedLayout NativeFormat::matrix(int64_t rows, int64_t columns) const {
    std::vector<int64_t> shape{rows, columns}, block = sizes(2);
    for (int i : {0, 1}) block[i] = block[i] == 0 ? shape[i] : std::min(block[i], shape[i]);
    OwnedGrid made;
    made.grid = {.planes = 1, .rows = rows, .columns = columns, .block_planes = 1,
                 .block_rows = std::max<int64_t>(block[0], 1),
                 .block_columns = std::max<int64_t>(block[1], 1)};
    return {std::move(made), inner_ ? inner_->grid(scale_shape(shape)) : OwnedGrid()};
}

}  // namespace blockscale
