// SPDX-License-Identifier: BSD-3-Clause
// Fused ops for Python: tensors as Rows, then addresses and sizes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "../address.h"
#include "../isa.h"
#include "../native_format.h"

namespace nb = nanobind;

namespace blockscale {
namespace {


// Scale, outer scale, zero point and offset.
QParams scales(const std::array<Address, 4>& parts) {
    return {at(parts[0]), at<float>(parts[1]), at(parts[2]), at(parts[3])};
}

// Rows, and the format that they refer to.
struct NativeRows {
    Rows rows;
    std::shared_ptr<NativeFormat> format;
};

// The columns that share a scale where blocks lie within rows: 0 if several rows have one scale all
// together, -1 if blocks are something else.
int64_t row_block(const NativeFormat& format, const std::vector<int64_t>& shape) {
    OwnedLayout layout = format.layout(shape);
    const Grid& g = layout.grid;
    if (g.size() == 0 || format.spec().scale == ScaleKind::two_level) return -1;
    int64_t last = shape.back();
    if (g.blocks() == 1) return g.size() == last ? last : 0;
    if (g.outer || g.interleaved || g.block_rows != 1) return -1;
    if (g.block_planes != 1 && g.planes != 1) return -1;
    bool whole = g.planes * g.rows == 1 && last % g.block_columns == 0;
    return g.columns == last || whole ? g.block_columns : -1;
}

}  // namespace
}  // namespace blockscale

void bind_fused(nb::module_& m) {
    using namespace blockscale;
    m.def("row_block", &row_block);
    nb::class_<NativeRows>(m, "Rows")
        .def("__init__", [](NativeRows* self, Address floats) {
            new (self) NativeRows{{at(floats), nullptr, 0, {}}, nullptr};
        })
        .def("__init__", [](NativeRows* self, std::shared_ptr<NativeFormat> format, int64_t block,
                            Address codes, const std::array<Address, 4>& parts) {
            QParams scale{at(parts[0]), at<float>(parts[1]), at<int32_t>(parts[2]), at(parts[3])};
            const Spec* spec = &format->spec();
            new (self) NativeRows{{at(codes), spec, block, scale}, std::move(format)};
        });
    m.def("look_up", [](Address table, int bytes, Address codes, int64_t n, Address out,
                        int threads) {
        isa().fused->look_up(at(table), bytes, at<uint8_t>(codes), n, at(out), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("look_up_wide", [](Address table, int bytes, Address codes, int64_t n, Address out,
                             int threads) {
        isa().fused->look_up_wide(at(table), bytes, at<uint16_t>(codes), n, at(out), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("norm", [](bool centered, double eps, Address weight, Address bias, const NativeRows& a,
                     const NativeRows* b, int64_t rows, int64_t columns, Address sums,
                     Address values, const NativeRows* codes, bool given, int threads) {
        Norm norm{centered, static_cast<float>(eps), at<float>(weight), at<float>(bias)};
        Result to{at<float>(values), codes ? codes->rows : Rows{}, given};
        isa().fused->norm(norm, a.rows, b ? &b->rows : nullptr, rows, columns, at<float>(sums), to,
                          threads);
    }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
       nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
       nb::call_guard<nb::gil_scoped_release>());
    m.def("binary", [](int kind, const NativeRows& a, const NativeRows& b, int64_t rows,
                       int64_t columns, Address values, const NativeRows* codes, bool given,
                       int threads) {
        Result to{at<float>(values), codes ? codes->rows : Rows{}, given};
        isa().fused->binary(Binary(kind), a.rows, b.rows, rows, columns, to, threads);
    }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
       nb::arg(), nb::call_guard<nb::gil_scoped_release>());
    // tensors: addresses of query, key, value and mask, each with its strides
    m.def("attention", [](const std::array<Address, 4>& tensors,
                          const std::array<std::vector<int64_t>, 4>& strides,
                          const std::array<int64_t, 7>& sizes, bool causal, double scale,
                          Address values, const NativeRows* codes, bool given, int threads) {
        Attention a{};
        a.query = at<float>(tensors[0]), a.key = at<float>(tensors[1]);
        a.value = at<float>(tensors[2]), a.mask = at<float>(tensors[3]);
        int64_t* places[4] = {a.query_strides, a.key_strides, a.value_strides, a.mask_strides};
        for (int i = 0; i < 4; ++i) std::copy(strides[i].begin(), strides[i].end(), places[i]);
        std::tie(a.batch, a.heads, a.shared, a.rows, a.keys, a.depth, a.width) =
            std::tuple_cat(sizes);
        a.causal = causal, a.scale = static_cast<float>(scale);
        Result to{at<float>(values), codes ? codes->rows : Rows{}, given};
        isa().fused->attention(a, to, threads);
    }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
       nb::arg(), nb::call_guard<nb::gil_scoped_release>());
    m.def("cached_attention", [](const NativeFormat& keys, const NativeFormat& values,
                                 const std::array<Address, 2>& codes, const std::array<Address, 4>& key_parts,
                                 const std::array<Address, 4>& value_parts, const std::array<Address, 5>& floats,
                                 const std::array<int64_t, 4>& mask_strides,
                                 const std::array<int64_t, 9>& sizes, double scale, Address y, int threads) {
        CachedAttention a{};
        std::tie(a.batch, a.heads, a.rows, a.queries, a.tokens, a.recent, a.depth, a.width, a.chunk) =
            std::tuple_cat(sizes);
        int64_t row = a.chunk ? a.chunk : a.depth;
        OwnedLayout key_layout = keys.matrix(a.batch * a.heads * a.tokens * a.depth / row, row);
        OwnedLayout value_layout = values.matrix(a.batch * a.heads * a.tokens, a.width);
        Layout of_keys = key_layout, of_values = value_layout;
        a.keys = {&keys.spec(), &of_keys, at(codes[0]), scales(key_parts)};
        a.values = {&values.spec(), &of_values, at(codes[1]), scales(value_parts)};
        a.query = at<float>(floats[0]), a.recent_keys = at<float>(floats[1]);
        a.recent_values = at<float>(floats[2]), a.mask = at<float>(floats[3]);
        a.sinks = at<float>(floats[4]);
        std::copy(mask_strides.begin(), mask_strides.end(), a.mask_strides);
        a.scale = static_cast<float>(scale);
        isa().fused->cached_attention(a, at<float>(y), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
}
