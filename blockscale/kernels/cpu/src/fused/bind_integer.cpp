// SPDX-License-Identifier: BSD-3-Clause
// Ops on integers for Python: addresses, types and sizes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "../address.h"
#include "../isa.h"

namespace nb = nanobind;

namespace blockscale {
namespace {

using Given = std::tuple<Address, int, int32_t>;                              // Integers
using End = std::tuple<Address, int, int32_t, int32_t, int32_t, int32_t>;     // Ending

Integers integers(const Given& x) {
    return {at(std::get<0>(x)), Whole(std::get<1>(x)), std::get<2>(x)};
}

Ending ending(const End& to) {
    auto [y, type, shift, zero, low, high] = to;
    return {at(y), Whole(type), shift, zero, low, high};
}

}  // namespace
}  // namespace blockscale

void bind_integer(nb::module_& m) {
    using namespace blockscale;
    m.def("integer_sum", [](const Given& a, const Given& b, int32_t a_left, int32_t b_left,
                            int32_t sign, int64_t largest, int64_t n, const End& to, int threads) {
        IntegerSum sum{integers(a), integers(b), a_left, b_left, sign, largest};
        isa().integers->sum(sum, n, ending(to), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("integer_norm", [](const Given& x, Address weight, Address bias, bool centered,
                             int64_t epsilon, int64_t rows, int64_t columns, const End& to,
                             int threads) {
        IntegerNorm norm{integers(x), at<int32_t>(weight), at<int64_t>(bias), centered, epsilon};
        isa().integers->norm(norm, rows, columns, ending(to), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    // strides: of query, key, value and mask
    m.def("integer_attention", [](const std::array<Given, 3>& given, Address seen,
                                  const std::array<std::vector<int64_t>, 4>& strides,
                                  const std::array<int64_t, 7>& sizes, bool causal, int32_t factor,
                                  int32_t right, Address table, const End& to, int threads) {
        IntegerAttention a{};
        a.query = integers(given[0]), a.key = integers(given[1]), a.value = integers(given[2]);
        a.seen = at<uint8_t>(seen);
        int64_t* places[4] = {a.query_strides, a.key_strides, a.value_strides, a.seen_strides};
        for (int i = 0; i < 4; ++i) std::copy(strides[i].begin(), strides[i].end(), places[i]);
        std::tie(a.batch, a.heads, a.shared, a.rows, a.keys, a.depth, a.width) =
            std::tuple_cat(sizes);
        a.causal = causal, a.factor = factor, a.right = right, a.table = at<int32_t>(table);
        isa().integers->attention(a, ending(to), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
}
