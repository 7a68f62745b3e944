// Linear layers for Python: a LinearWeight made once per weight, then addresses and sizes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>

#include <array>

#include "linear_weight.h"

namespace nb = nanobind;

namespace blockscale {
namespace {

using Address = uintptr_t;  // Tensor.data_ptr(), 0 for none

template <class T = void>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

Output output(Address bias, Address y, int dtype) {
    return {at<float>(bias), at(y), Dtype(dtype)};
}

}  // namespace
}  // namespace blockscale

void bind_linear(nb::module_& m) {
    using namespace blockscale;
    nb::class_<LinearWeight>(m, "LinearWeight")
        .def("__init__", [](LinearWeight* self, std::shared_ptr<NativeFormat> format, int64_t n,
                            int64_t k, Address codes, const std::array<Address, 4>& parts) {
            QParams scale{at(parts[0]), at<float>(parts[1]), at<int32_t>(parts[2]), at(parts[3])};
            new (self) LinearWeight(std::move(format), n, k, at(codes), scale);
        })
        .def("unchanged", &LinearWeight::unchanged)
        .def("integers", [](LinearWeight& w, const NativeFormat& format, Address x, int dtype,
                            int64_t rows, int64_t block, Address scale, Address bias, Address y,
                            int y_dtype, int threads) {
            IntegerInput in{at(x), Dtype(dtype), rows, nullptr, block, at(scale)};
            return w.integers(format, in, output(bias, y, y_dtype), threads);
        }, nb::call_guard<nb::gil_scoped_release>())
        .def("floats", [](LinearWeight& w, Address x, int dtype, int64_t rows, Address bias,
                          Address y, int y_dtype, int threads) {
            w.floats(at(x), Dtype(dtype), rows, output(bias, y, y_dtype), threads);
        }, nb::call_guard<nb::gil_scoped_release>());
    m.def("fingerprint", [](Address data, int64_t bytes, int threads) {
        return fingerprint(at(data), bytes, threads);
    }, nb::call_guard<nb::gil_scoped_release>());
}
