// SPDX-License-Identifier: BSD-3-Clause
// Linear layers for Python: a LinearWeight made once per weight, then addresses and sizes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <vector>

#include "address.h"
#include "isa.h"
#include "linear_weight.h"

namespace nb = nanobind;

namespace blockscale {
namespace {


Output output(Address bias, Address y, int dtype) {
    return {at<float>(bias), at(y), Dtype(dtype), Activation::none, nullptr, nullptr, 0};
}

// (kernel, size, out, stride, padding, dilation) of up to three dimensions each, then the channels.
Window window(const std::vector<int64_t>& numbers) {
    Window w{};
    int64_t dims = static_cast<int64_t>(numbers.size()) / 6;
    int64_t* parts[] = {w.kernel, w.size, w.out, w.stride, w.padding, w.dilation};
    for (int64_t part = 0; part < 6; ++part)
        for (int64_t i = 0; i < 3; ++i) {
            int64_t from = i - (3 - dims), missing = part == 4 ? 0 : 1;
            parts[part][i] = from < 0 ? missing : numbers[part * dims + from];
        }
    w.channels = numbers.back();
    return w;
}

template <class T>
std::vector<const T*> at_each(const std::vector<Address>& addresses) {
    std::vector<const T*> found;
    for (Address each : addresses) found.push_back(at<const T>(each));
    return found;
}

// (outputs, k) of a stack, and whether none of its weights has changed since it was made ready.
bool grouped(const std::vector<LinearWeight*>& weights, const std::vector<int64_t>& bounds,
             const std::vector<Address>& biases, std::array<int64_t, 2> sizes, Groups* groups) {
    *groups = {weights, bounds, at_each<float>(biases), sizes[0], sizes[1]};
    for (const LinearWeight* each : weights)
        if (!each->unchanged()) return false;
    return true;
}

}  // namespace
}  // namespace blockscale

void bind_linear(nb::module_& m) {
    using namespace blockscale;
    nb::class_<LinearWeight>(m, "LinearWeight")
        .def("__init__", [](LinearWeight* self, std::shared_ptr<NativeFormat> format, int64_t n,
                            int64_t k, Address codes, const std::array<Address, 4>& parts) {
            QParams scale{at(parts[0]), at<float>(parts[1]), at(parts[2]), at(parts[3])};
            new (self) LinearWeight(std::move(format), n, k, at(codes), scale);
        })
        .def("unchanged", &LinearWeight::unchanged)
        .def("integers", [](LinearWeight& w, const NativeFormat& format, Address x, int dtype,
                            int64_t rows, int64_t block, Address scale, Address zero_point,
                            Address bias, Address y, int y_dtype, int threads) {
            IntegerInput in{at(x), Dtype(dtype), rows, nullptr, block, at(scale),
                            at<int32_t>(zero_point), false, nullptr, 0};
            return w.integers(format, in, output(bias, y, y_dtype), threads);
        }, nb::call_guard<nb::gil_scoped_release>())
        .def("codes", [](LinearWeight& w, const NativeFormat& format, Address x, int64_t rows,
                         int64_t block, Address scale, Address zero_point, int64_t scales,
                         const std::vector<int64_t>& places, Address bias, int activation,
                         Address y, int y_dtype, int64_t image, const NativeFormat* y_format,
                         Address y_scale, Address y_zero_point, int threads) {
            Window patches{};
            if (!places.empty()) patches = window(places);
            IntegerInput in{at(x), Dtype::fp32, rows, nullptr, block, at(scale),
                            at<int32_t>(zero_point), true, places.empty() ? nullptr : &patches,
                            scales};
            Output out = output(bias, y, y_dtype);
            out.activation = Activation(activation), out.image = image;
            Codes codes;
            if (y_format) {
                if (!codes_of(*y_format, at(y_scale), at<int32_t>(y_zero_point), &codes)) return false;
                out.codes = &codes;
            }
            return w.integers(format, in, out, threads);
        }, nb::call_guard<nb::gil_scoped_release>(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg())
        .def("shifts", [](LinearWeight& w, const NativeFormat& format, Address x, int64_t rows,
                          int32_t zero_point, const std::vector<int64_t>& places, int64_t groups, Address y,
                          const std::array<Address, 2>& ends_before, bool wide, int before_left,
                          const std::array<int64_t, 5>& end, int threads) {
            static const float one = 1.0f;
            Window patches{};
            if (!places.empty()) patches = window(places);
            IntegerInput in{at(x), Dtype::fp32, rows, nullptr, 0, &one, &zero_point, true,
                            places.empty() ? nullptr : &patches, 1};
            const auto& [type, rounding, zero, low, high] = end;
            Shifts shifts{at(ends_before[0]), wide, at(ends_before[1]), before_left,
                          Rounding(rounding), Whole(type), zero, low, high};
            Output out = output(0, y, 0);
            out.shifts = &shifts;
            if (groups > 0) {  // without patches
                int64_t pixels = patches.out[0] * patches.out[1] * patches.out[2];
                Image image{at(x), Dtype::fp32, &format.spec(), 1.0f, zero_point, rows / pixels, groups, patches};
                return w.direct(image, &one, out, threads);
            }
            return w.integers(format, in, out, threads);
        }, nb::call_guard<nb::gil_scoped_release>())
        .def("direct", [](LinearWeight& w, const NativeFormat* format, Address x, int dtype,
                          Address scale, int32_t zero_point, int64_t batch, int64_t groups,
                          const std::vector<int64_t>& places, Address bias, int activation,
                          Address y, int y_dtype, int64_t image,
                          const NativeFormat* y_format, Address y_scale, Address y_zero_point,
                          int threads) {
            Image in{at(x), Dtype(dtype), format ? &format->spec() : nullptr, 1.0f, zero_point, batch,
                     groups, window(places)};
            Output out = output(bias, y, y_dtype);
            out.activation = Activation(activation), out.image = image;
            Codes codes;
            if (y_format) {
                if (!codes_of(*y_format, at(y_scale), at<int32_t>(y_zero_point), &codes)) return false;
                out.codes = &codes;
            }
            return w.direct(in, at(scale), out, threads);
        }, nb::call_guard<nb::gil_scoped_release>(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg())
        .def("planes", [](LinearWeight& w, const NativeFormat* format, Address x, int dtype, Address scale,
                          Address zero_point, int64_t batch, int64_t groups,
                          const std::vector<int64_t>& places, Address bias, Address y, int y_dtype,
                          int threads) {
            Image in{at(x), Dtype(dtype), nullptr, 1.0f, 0, batch, groups, window(places)};
            QParams given{at(scale), nullptr, at(zero_point), nullptr};
            return w.planes(format, in, given, output(bias, y, y_dtype), threads);
        }, nb::call_guard<nb::gil_scoped_release>(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
        .def("floats", [](LinearWeight& w, Address x, int dtype, int64_t rows, Address bias,
                          Address y, int y_dtype, int threads, bool in_order) {
            w.floats(at(x), Dtype(dtype), rows, output(bias, y, y_dtype), threads, in_order);
        }, nb::call_guard<nb::gil_scoped_release>(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg() = false);
    m.def("grouped_floats", [](const std::vector<LinearWeight*>& weights, const std::vector<int64_t>& bounds,
                               const std::vector<Address>& biases, std::array<int64_t, 2> sizes, Address x,
                               int dtype, Address y, int y_dtype, int threads, bool in_order) {
        Groups groups;
        if (!grouped(weights, bounds, biases, sizes, &groups)) return false;
        nb::gil_scoped_release release;
        grouped_floats(groups, at(x), Dtype(dtype), at(y), Dtype(y_dtype), threads, in_order);
        return true;
    });
    // The groups of which integer arithmetic cannot give the result; none at all where a weight has changed.
    m.def("grouped_integers", [](const std::vector<LinearWeight*>& weights, const std::vector<int64_t>& bounds,
                                 const std::vector<Address>& biases, std::array<int64_t, 2> sizes,
                                 const NativeFormat& format, Address x, int dtype, int64_t block,
                                 const std::vector<Address>& scales, const std::vector<Address>& zero_points,
                                 Address y, int y_dtype, int threads) -> std::optional<std::vector<int64_t>> {
        Groups groups;
        if (!grouped(weights, bounds, biases, sizes, &groups)) return std::nullopt;
        nb::gil_scoped_release release;
        return grouped_integers(groups, format, at(x), Dtype(dtype), block, at_each<void>(scales),
                                at_each<int32_t>(zero_points), at(y), Dtype(y_dtype), threads);
    });
    m.def("activate", [](int activation, Address y, int64_t n, int threads) {
        isa().linears->activate(Activation(activation), at<float>(y), n, threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("transpose", [](int bytes, Address x, int64_t planes, int64_t rows, int64_t columns, Address y,
                          int threads) {
        isa().linears->transpose(bytes, at(x), planes, rows, columns, at(y), threads);
    }, nb::call_guard<nb::gil_scoped_release>());
    m.def("fingerprint", [](Address data, int64_t bytes, int threads) {
        return fingerprint(at(data), bytes, threads);
    }, nb::call_guard<nb::gil_scoped_release>());
}
