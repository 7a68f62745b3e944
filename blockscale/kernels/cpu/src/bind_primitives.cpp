// SPDX-License-Identifier: BSD-3-Clause
// The primitives for Python: a Format object made once per format, then addresses and shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>

#include "address.h"
#include "isa.h"
#include "native_format.h"

namespace nb = nanobind;

namespace blockscale {
namespace {

using Shape = std::vector<int64_t>;
using Parts = std::array<Address, 4>;  // scale, outer, zero point, offset

QParams qparams(const Parts& parts) {
    return {reinterpret_cast<void*>(parts[0]), reinterpret_cast<float*>(parts[1]),
            reinterpret_cast<void*>(parts[2]), reinterpret_cast<void*>(parts[3])};
}

}  // namespace
}  // namespace blockscale

void bind_primitives(nb::module_& m) {
    using namespace blockscale;
    m.def("choose", [](const NativeFormat& f, const Shape& shape, Address x, int dtype,
                       const Parts& parts, int threads) {
        isa().primitives->choose(f.spec(), f.layout(shape), at(x), Dtype(dtype), qparams(parts),
                                 threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("quantize", [](const NativeFormat& f, const Shape& shape, Address x, int dtype,
                         const Parts& parts, Address codes, bool packed, int64_t seed,
                         int64_t first, int threads) {
        isa().primitives->quantize(f.spec(), f.layout(shape), at(x), Dtype(dtype), qparams(parts),
                                   at(codes), packed, Seed{seed, first}, threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("choose_quantize", [](const NativeFormat& f, const Shape& shape, Address x, int dtype,
                                const Parts& parts, Address codes, bool packed, int64_t seed,
                                int64_t first, int threads) {
        isa().primitives->choose_quantize(f.spec(), f.layout(shape), at(x), Dtype(dtype),
                                          qparams(parts), at(codes), packed,
                                          Seed{seed, first}, threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("dequantize", [](const NativeFormat& f, const Shape& shape, Address codes, bool packed,
                           const Parts& parts, Address y, int dtype, int threads) {
        isa().primitives->dequantize(f.spec(), f.layout(shape), at(codes), packed, qparams(parts),
                                     at(y), Dtype(dtype), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("fake_quantize", [](const NativeFormat& f, const Shape& shape, Address x, int dtype,
                              bool given, const Parts& parts, Address y, int64_t seed,
                              int64_t first, int threads) {
        isa().primitives->fake_quantize(f.spec(), f.layout(shape), at(x), Dtype(dtype), given,
                                        qparams(parts), at(y), Seed{seed, first}, threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("straight_through", [](const NativeFormat& f, const Shape& shape, Address x, int dtype,
                                 bool given, const Parts& parts, Address gradient,
                                 int gradient_dtype, Address y, int threads) {
        isa().primitives->straight_through(f.spec(), f.layout(shape), at(x), Dtype(dtype), given,
                                           qparams(parts), at(gradient), Dtype(gradient_dtype),
                                           at(y), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("pack", [](int bits, Address patterns, int64_t rows, int64_t size, Address packed,
                     int threads) {
        isa().primitives->pack(bits, at(patterns), rows, size, at(packed), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("unpack", [](int bits, Address packed, int64_t rows, int64_t size, Address patterns,
                       int threads) {
        isa().primitives->unpack(bits, at(packed), rows, size, at(patterns), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("round_columns", [](const NativeFormat& f, int64_t columns, int64_t rows, Address wanted,
                              Address base, Address coupling, const Parts& parts, Address codes,
                              Address values, Address errors, int threads) {
        OwnedLayout layout = f.layout({columns, rows});
        auto wide = [](Address address) { return reinterpret_cast<double*>(address); };
        ColumnsTask task{f.spec(),       layout,         columns,   rows,
                         wide(wanted),   wide(base),     wide(coupling), qparams(parts),
                         at(codes),      reinterpret_cast<float*>(values), wide(errors)};
        isa().primitives->round_columns(task, threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("block_errors", [](const NativeFormat& f, const Shape& shape, Address x, int dtype,
                             const Parts& parts, Address errors, int threads) {
        return isa().primitives->block_errors(f.spec(), f.layout(shape), at(x), Dtype(dtype), qparams(parts),
                                              reinterpret_cast<double*>(errors), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("embedding", [](const NativeFormat& f, int64_t rows, int64_t columns, Address codes,
                          const Parts& parts, Address indices, int64_t count, Address y,
                          int dtype, int threads) {
        return isa().primitives->embedding(f.spec(), f.matrix(rows, columns), at(codes), qparams(parts),
                                           reinterpret_cast<const int64_t*>(indices), count, at(y),
                                           Dtype(dtype), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
}
