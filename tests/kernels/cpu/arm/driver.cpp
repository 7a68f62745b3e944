// SPDX-License-Identifier: BSD-3-Clause
// Runs the kernels on memory from a file, without Python: `driver ISA CALLS MEMORY RESULT`. CALLS has
// one call a line, as test_arm.py writes them; an address is a place in MEMORY (0: none), which goes
// to RESULT afterwards. ISA may be "list": then the instruction sets that are present are named.
#include <bit>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"
#include "linear_weight.h"
#include "native_format.h"

namespace {

using namespace blockscale;

struct Memory {
    std::vector<char> bytes;
    char* base = nullptr;

    void read(const char* path) {
        std::ifstream in(path, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(in), {});
        base = bytes.data();
    }
};

// The words of a line, one after the other.
struct Words {
    std::istringstream line;
    Memory& memory;

    int64_t number() {
        int64_t value;
        if (!(line >> value)) throw std::runtime_error("a call has too few numbers");
        return value;
    }
    template <class T = int>
    T as() { return static_cast<T>(number()); }
    template <class T = void>
    T* address() {
        int64_t at = number();
        return at ? reinterpret_cast<T*>(memory.base + at) : nullptr;
    }
    float real() { return std::bit_cast<float>(as<uint32_t>()); }
    template <class T, class F>
    std::vector<T> list(F each) {
        std::vector<T> found(number());
        for (T& value : found) value = (this->*each)();
        return found;
    }
    std::vector<int64_t> sizes() { return list<int64_t>(&Words::number); }
    QParams parts() {
        void* scale = address();
        float* outer = address<float>();
        void* zero_point = address();
        return {scale, outer, zero_point, address()};
    }
    Seed seed() {
        int64_t key = number();
        return {key, number()};
    }
};

Element element(Words& w) {
    Element e{};
    e.family = w.as<Family>(), e.bits = w.as(), e.is_signed = w.as();
    e.low = w.real(), e.high = w.real(), e.smallest_normal = w.real();
    e.statistic = w.as<Statistic>(), e.mantissa_bits = w.as(), e.bias = w.as();
    e.max_code = w.as(), e.nan_code = w.as(), e.infinity_code = w.as();
    e.values = w.list<float>(&Words::real);
    e.order = w.list<int>(&Words::as<int>);
    e.thresholds = w.list<float>(&Words::real);
    if (e.family == Family::codebook) e.book = make_codebook(e.bits, e.values, e.order, e.thresholds);
    return e;
}

Spec spec(Words& w) {
    Spec s{};
    s.element = element(w), s.statistic = w.as<Statistic>(), s.scale = w.as<ScaleKind>();
    s.nearest = w.as(), s.threshold = w.as(), s.emax = w.as(), s.levels = w.real();
    s.fraction_bits = w.as(), s.full = w.as(), s.asym = w.as(), s.recip = w.as();
    s.poisons = w.as(), s.rounding = w.as<Rounding>();
    s.outer_levels = w.real(), s.zero = w.as<Stored>(), s.offset = w.as<Stored>();
    return s;
}

class Driver {
public:
    explicit Driver(Memory& memory) : memory_(memory) {}

    void run(const std::string& text) {
        Words w{std::istringstream(text), memory_};
        std::string name;
        w.line >> name;
        if (!(add(name, w) || primitive(name, w) || more(name, w) || linear(name, w)))
            throw std::runtime_error("no such call: " + text);
    }

private:
    const NativeFormat& format(Words& w) { return *formats_.at(w.number()); }

    // What later calls name by its number.
    bool add(const std::string& name, Words& w) {
        if (name == "format") {
            Spec s = spec(w);
            std::vector<int64_t> block = w.sizes();
            int64_t rest = w.number(), inner = w.number();
            std::shared_ptr<NativeFormat> of_scales;
            if (inner >= 0) {
                of_scales = formats_.at(inner);
                Spec plain{};
                plain.element = of_scales->spec().element;
                s.inner = std::make_shared<const Spec>(plain);
            }
            formats_.push_back(std::make_shared<NativeFormat>(s, block, rest, of_scales));
        } else if (name == "weight") {
            std::shared_ptr<NativeFormat> of = formats_.at(w.number());
            int64_t n = w.number(), k = w.number();
            void* codes = w.address();
            weights_.push_back(std::make_unique<LinearWeight>(of, n, k, codes, w.parts()));
        } else {
            return false;
        }
        return true;
    }

    bool primitive(const std::string& name, Words& w) {
        const Primitives& p = *isa().primitives;
        bool chosen = name == "choose_quantize";
        if (name != "choose" && name != "quantize" && name != "dequantize" && !chosen &&
            name != "fake_quantize" && name != "straight_through")
            return false;
        const NativeFormat& f = format(w);
        OwnedLayout layout = f.layout(w.sizes());
        void* x = w.address();
        Dtype dtype = w.as<Dtype>();
        QParams parts = w.parts();
        bool flag = w.as();  // packed, or a given scale
        void* y = w.address();
        if (name == "choose") {
            p.choose(f.spec(), layout, x, dtype, parts, 1);
        } else if (name == "dequantize") {
            p.dequantize(f.spec(), layout, x, flag, parts, y, dtype, 1);
        } else if (name == "straight_through") {
            void* gradient = w.address();
            p.straight_through(f.spec(), layout, x, dtype, flag, parts, gradient, dtype, y, 1);
        } else if (name == "fake_quantize") {
            p.fake_quantize(f.spec(), layout, x, dtype, flag, parts, y, w.seed(), 1);
        } else {
            (chosen ? p.choose_quantize : p.quantize)(f.spec(), layout, x, dtype, parts, y, flag,
                                                      w.seed(), 1);
        }
        return true;
    }

    bool more(const std::string& name, Words& w) {
        const Primitives& p = *isa().primitives;
        if (name == "pack" || name == "unpack") {
            int bits = w.as();
            void* from = w.address();
            int64_t rows = w.number(), size = w.number();
            (name == "pack" ? p.pack : p.unpack)(bits, from, rows, size, w.address(), 1);
        } else if (name == "embedding") {
            const NativeFormat& f = format(w);
            int64_t rows = w.number(), columns = w.number();
            void* codes = w.address();
            QParams parts = w.parts();
            int64_t* indices = w.address<int64_t>();
            int64_t count = w.number();
            void* y = w.address();
            p.embedding(f.spec(), f.matrix(rows, columns), codes, parts, indices, count, y,
                        w.as<Dtype>(), 1);
        } else if (name == "round_columns") {
            const NativeFormat& f = format(w);
            int64_t columns = w.number(), rows = w.number();
            OwnedLayout layout = f.layout({columns, rows});
            double *wanted = w.address<double>(), *coupling = w.address<double>();
            QParams parts = w.parts();
            void* codes = w.address();
            float* values = w.address<float>();
            p.round_columns({f.spec(), layout, columns, rows, wanted, nullptr, coupling, parts, codes,
                             values, w.address<double>()}, 1);
        } else if (name == "look_up") {
            void* table = w.address();
            int bytes = w.as();
            uint8_t* codes = w.address<uint8_t>();
            int64_t n = w.number();
            isa().fused->look_up(table, bytes, codes, n, w.address(), 1);
        } else {
            return false;
        }
        return true;
    }

    bool linear(const std::string& name, Words& w) {
        if (name != "integers" && name != "codes" && name != "floats") return false;
        LinearWeight& weight = *weights_.at(w.number());
        const NativeFormat* f = name == "floats" ? nullptr : &format(w);
        void* x = w.address();
        Dtype dtype = w.as<Dtype>();
        int64_t rows = w.number();
        float* bias = w.address<float>();
        void* y = w.address();
        Output to{bias, y, dtype, Activation::none, nullptr};
        if (!f) {
            weight.floats(x, dtype, rows, to, 1);
            return true;
        }
        int64_t block = w.number();
        void* scale = w.address();
        int32_t* zero_point = w.address<int32_t>();
        int64_t scales = w.number();
        IntegerInput in{x, dtype, rows, nullptr, block, scale, zero_point, name == "codes", nullptr, scales};
        if (!weight.integers(*f, in, to, 1)) throw std::runtime_error("not by integers");
        return true;
    }

    Memory& memory_;
    std::vector<std::shared_ptr<NativeFormat>> formats_;
    std::vector<std::unique_ptr<LinearWeight>> weights_;
};

}  // namespace

int main(int argc, char** argv) try {
    if (argc == 2 && std::string(argv[1]) == "list") {
        for (const Isa& each : isas())
            if (each.present()) std::cout << each.name << '\n';
        return 0;
    }
    if (argc != 5) throw std::runtime_error("expected ISA CALLS MEMORY RESULT");
    select_isa(argv[1]);
    Memory memory;
    memory.read(argv[3]);
    Driver driver(memory);
    std::ifstream calls(argv[2]);
    for (std::string line; std::getline(calls, line);) driver.run(line);
    std::ofstream(argv[4], std::ios::binary).write(memory.base, memory.bytes.size());
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "driver: %s\n", error.what());
    return 1;
}
