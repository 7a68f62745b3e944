// SPDX-License-Identifier: BSD-3-Clause
#include "linear_weight.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "isa.h"

namespace blockscale {

namespace {

constexpr int64_t kSpare = 64;  // bytes that kernels may read behind an array
constexpr int64_t kSpareChunks = 3;  // of the last panel: products of matrices take up to four at once

int64_t scale_size(ScaleKind kind) {
    switch (kind) {
        case ScaleKind::fp32:
        case ScaleKind::pow2: return 4;
        case ScaleKind::fp16:
        case ScaleKind::bf16: return 2;
        case ScaleKind::e8m0:
        case ScaleKind::two_level: return 1;
    }
    __builtin_unreachable();
}

// Whether a step is outer * the value of an e4m3 code.
bool is_e4m3(const Spec* inner) {
    return inner && inner->element.family == Family::minifloat && inner->element.bits == 8 &&
           inner->element.mantissa_bits == 3 && inner->element.bias == 7;
}

uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;  // odd, so no two words give the same
    return hash ^ (hash >> 29);
}

uint64_t sample_of(const void* data, int64_t bytes, uint64_t hash) {
    constexpr int64_t kWords = 32;
    const char* at = static_cast<const char*>(data);
    if (bytes == 0) return hash;  // memcpy takes no null pointer, not even for nothing
    for (int64_t i = 0; i < kWords; ++i) {
        uint64_t word = 0;
        int64_t first = bytes <= 8 ? 0 : (bytes - 8) * i / (kWords - 1);
        std::memcpy(&word, at + first, std::min<int64_t>(bytes, 8));
        hash = mix(hash, word);
    }
    return hash;
}

// Memory that is read from its beginning to its end again and again. In large pages, where there are
// any: a processor fetches ahead within a page (one row of int8, 4096 x 4096: a tenth faster).
uint8_t* streamed(int64_t bytes) {
    constexpr int64_t kLarge = 2 << 20;
    int64_t unit = bytes < kLarge ? kSpare : kLarge;
    void* data = allocate(bytes, unit);
#if defined(MADV_HUGEPAGE)
    if (bytes >= kLarge) madvise(data, bytes / kLarge * kLarge, MADV_HUGEPAGE);
#endif
    return static_cast<uint8_t*>(data);
}

// The largest |code - zero point| of x; -1 if the zero point of a window's edges is no code.
int64_t reach_of(const IntegerInput& x) {
    const Element& e = x.spec->element;
    int64_t low = e.is_signed ? -(1 << (e.bits - 1)) : 0, high = low + (1 << e.bits) - 1;
    if (!x.spec->asym) return std::max(-low, high);
    int64_t reach = high - low, zeros = x.scale ? std::max<int64_t>(x.scales, 1) : 0;
    for (int64_t i = 0; i < zeros; ++i) {
        int64_t zero = x.zero_point[i];
        if (x.window && x.block == 0 && (zero < low || zero > high)) return -1;
        reach = std::max({reach, zero - low, high - zero});
    }
    return reach;
}

// How many products of at most that size int32 can sum; 0 if too few. A power of two.
int64_t longest_sum(int64_t product) {
    int64_t n = 65536;
    while (n >= kCodes && product > INT32_MAX / n) n /= 2;
    return n >= kCodes ? n : 0;
}

// The steps of given scales. False where float32 sums of integers times them could leave its range.
bool given_steps(const IntegerInput& x, Numbers<float>* steps) {
    if (!x.scale) return true;
    steps->resize(x.codes ? x.scales : 1);
    Layout flat{one_block(1), kNoBlocks};
    flat.grid.columns = static_cast<int64_t>(steps->size());
    isa().primitives->steps(*x.spec, flat, {const_cast<void*>(x.scale), nullptr, nullptr, nullptr},
                            steps->data());
    if (!x.codes) return steps->front() >= 0x1p-90f && steps->front() <= 0x1p90f;
    return std::none_of(steps->begin(), steps->end(),
                        [](float step) { return std::abs(step) > 0x1p90f; });
}

PlaneShape shape_of(const Image& x) {
    return {x.window.channels / x.groups, x.window.dilation[2] == 1 ? x.window.kernel[2] : 0};
}

}  // namespace

bool codes_of(const NativeFormat& format, const void* scale, const int32_t* zero_point,
              Codes* codes) {
    constexpr int32_t kFar = 1 << 20;
    const Spec& spec = format.spec();
    if (spec.zero != Stored::none) return false;
    int32_t zero = zero_point ? *zero_point : 0;
    if (spec.element.family != Family::integer || spec.element.bits > 8 ||
        spec.offset != Stored::none ||
        spec.scale == ScaleKind::two_level ||
        spec.rounding != Rounding::nearest_even || zero < -kFar || zero > kFar)
        return false;
    float step;
    isa().primitives->steps(spec, {one_block(1), kNoBlocks},
                            {const_cast<void*>(scale), nullptr, nullptr, nullptr}, &step);
    *codes = {&spec, step, spec.recip, zero};
    if (spec.recip) {
        constexpr float kMost = std::numeric_limits<float>::max();
        codes->by = 1.0f / step;
        if (std::abs(codes->by) > kMost) codes->by = std::copysign(kMost, codes->by);
    }
    return true;
}

uint64_t fingerprint(const void* data, int64_t bytes, int threads) {
    constexpr int64_t kPart = 1 << 16, kChains = 8;  // multiplications wait for one another
    const char* at = static_cast<const char*>(data);
    int64_t parts = (bytes + kPart - 1) / kPart;
    Numbers<uint64_t> hashes(parts);
#pragma omp parallel for num_threads(startable(threads)) if (parts > 8)
    for (int64_t part = 0; part < parts; ++part) {
        uint64_t chains[kChains] = {}, words[kChains];
        int64_t end = std::min(bytes, (part + 1) * kPart);
        for (int64_t i = part * kPart; i < end; i += sizeof(words)) {
            if (end - i < int64_t{sizeof(words)}) std::memset(words, 0, sizeof(words));
            std::memcpy(words, at + i, std::min<int64_t>(end - i, sizeof(words)));
            for (int64_t c = 0; c < kChains; ++c) chains[c] = mix(chains[c], words[c]);
        }
        uint64_t hash = part;
        for (uint64_t chain : chains) hash = mix(hash, chain);
        hashes[part] = hash;
    }
    uint64_t hash = bytes;
    for (uint64_t part : hashes) hash = mix(hash, part);
    return hash;
}

LinearWeight::LinearWeight(std::shared_ptr<NativeFormat> format, int64_t n, int64_t k,
                           const void* codes, QParams scale)
    : format_(std::move(format)), scale_(scale) {
    const Spec& spec = format_->spec();
    OwnedLayout layout = format_->matrix(n, k);
    int64_t blocks = layout.grid.blocks();
    scale_bytes_ = blocks * scale_size(spec.scale);
    steps_.assign(blocks + kSpare / 4, 0.0f);
    isa().primitives->steps(spec, layout, scale, steps_.data());
    if (scale.zero_point) {
        zero_points_.assign(blocks + kSpare / 4, 0.0f);
        isa().primitives->zero_points(spec, scale.zero_point, blocks, zero_points_.data());
    }
    if (scale.offset) {
        offsets_.assign(blocks + kSpare / 4, 0.0f);
        isa().primitives->offsets(spec, scale.offset, blocks, offsets_.data());
    }
    float outer = 1.0f;
    bool e8m0 = spec.scale == ScaleKind::e8m0;
    if (e8m0 || (is_e4m3(spec.inner.get()) && layout.inner.blocks() == 1)) {
        const uint8_t* from = static_cast<const uint8_t*>(scale.scale);
        scale_codes_.assign(blocks + kSpare, 0);
        std::copy_n(from, blocks, scale_codes_.begin());
        outer = e8m0 ? 1.0f / static_cast<float>(1 << spec.fraction_bits) : scale.outer[0];
    }
    float_ = {.spec = &spec,
              .grid = layout.grid,
              .codes = static_cast<const uint8_t*>(codes),
              .steps = steps_.data(),
              .zero_points = scale.zero_point ? zero_points_.data() : nullptr,
              .offsets = scale.offset ? offsets_.data() : nullptr,
              .scale_codes = scale_codes_.empty() ? nullptr : scale_codes_.data(),
              .outer = outer};
    sample_ = sample();
}

uint64_t LinearWeight::sample() const {
    const Grid& g = float_.grid;
    uint64_t hash = sample_of(float_.codes, g.rows * float_.spec->row_bytes(g.columns), 0);
    return sample_of(scale_.scale, scale_bytes_, hash);
}

bool LinearWeight::integers_fit(const Spec& x, int64_t x_block) const {
    const Element &w = float_.spec->element, &e = x.element;
    if (w.family != Family::integer || w.bits > 8 || e.family != Family::integer || e.bits > 8 ||
        x.offset != Stored::none || float_.offsets || x.zero != Stored::none ||
        float_.spec->zero != Stored::none || x.scale == ScaleKind::two_level ||
        x.rounding == Rounding::stochastic)
        return false;
    int64_t k = float_.grid.columns, block = float_.grid.block_columns;
    int64_t small = std::min(block, x_block), large = std::max(block, x_block);
    if (small >= k) return true;
    return small % kCodes == 0 && (large >= k || large % small == 0);
}

bool LinearWeight::pack(int threads) {
    if (packed_ != State::unknown) return packed_ == State::yes;
    const Spec& spec = *float_.spec;
    IntegerWeight& w = integer_;
    w = {.n = float_.grid.rows, .k = float_.grid.columns, .block = float_.grid.block_columns,
         .nibbles = spec.element.bits <= 4, .codes = nullptr, .scales = nullptr, .zeros = nullptr,
         .reach = 0};
    bool zeros = spec.asym || !spec.element.is_signed;
    panels_.reset(streamed((w.panels() * w.chunks() + kSpareChunks) * w.chunk_bytes()));
    panel_scales_.resize(w.panels() * w.blocks() * kPanel);
    panel_zeros_.resize(zeros ? panel_scales_.size() : 0);
    w.codes = panels_.get();
    w.scales = panel_scales_.data();
    w.zeros = zeros ? panel_zeros_.data() : nullptr;
    bool done = isa().linears->pack_integers(float_, w, panels_.get(), panel_scales_.data(),
                                             zeros ? panel_zeros_.data() : nullptr, threads);
    w.reach = w.offset();
    for (int64_t zero : panel_zeros_)
        w.reach = std::max({w.reach, std::abs(zero), std::abs(2 * w.offset() - 1 - zero)});
    packed_ = done ? State::yes : State::no;
    if (!done) {
        panels_.reset();
        panel_scales_ = {};
        panel_zeros_ = {};
    }
    return done;
}

const int32_t* LinearWeight::sums_of(int64_t block, int threads) {
    Numbers<int32_t>& sums = sums_[block];
    if (sums.empty()) {
        sums.resize(integer_.panels() * ((integer_.k + block - 1) / block) * kPanel);
        isa().linears->sum_blocks(integer_, block, sums.data(), threads);
    }
    return sums.data();
}

bool LinearWeight::integers(const NativeFormat& x_format, IntegerInput x, const Output& y,
                            int threads) {
    const Spec& spec = x_format.spec();
    int64_t k = float_.grid.columns;
    x.spec = &spec;
    x.block = std::min(x.block, k);
    int64_t x_block = x.block == 0 ? k : x.block;
    Numbers<float> steps;
    if (!integers_fit(spec, x_block)) return false;
    int64_t x_reach = reach_of(x);
    if (x_reach < 0 || !given_steps(x, &steps)) return false;
    IntegerSums sums{.block = 0, .steps = steps.data(), .sums = nullptr};
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (!pack(threads)) return false;
        int64_t small = std::min(x_block, integer_.block);
        int64_t longest = longest_sum(integer_.reach * x_reach);
        if (y.shifts) longest = k;  // proven
        if (longest == 0 || (small < k && small > longest)) return false;
        sums.block = std::min(small, longest);
        bool moved = !spec.element.is_signed && spec.element.bits == 8;  // isa/linear/rows.h
        if (spec.asym || moved) sums.sums = sums_of(sums.block, threads);
    }
    isa().linears->integers(integer_, x, sums, y, threads);
    return true;
}

void LinearWeight::floats(const void* x, Dtype dtype, int64_t rows, const Output& y, int threads,
                          bool in_order) {
    const Linears* linears = isa().linears;
    if (in_order) return linears->floats(float_, x, dtype, rows, y, threads, true);
    int64_t few;
    {
        std::lock_guard<std::mutex> guard(lock_);
        auto found = few_.find(linears);
        if (found == few_.end()) found = few_.emplace(linears, linears->few(float_, threads)).first;
        few = found->second;
    }
    if (rows <= few && linears->few_rows(float_, x, dtype, rows, y, threads)) return;
    linears->floats(float_, x, dtype, rows, y, threads, false);
}

bool LinearWeight::direct(Image x, const void* scale, const Output& y, int threads) {
    constexpr int32_t kFar = 1 << 23;
    x.step = 1.0f;
    if (x.codes) {
        QParams given{const_cast<void*>(scale), nullptr, nullptr, nullptr};
        isa().primitives->steps(*x.codes, {one_block(1), kNoBlocks}, given, &x.step);
        if (!(std::abs(x.step) <= 0x1p90f) || x.zero_point < -kFar || x.zero_point > kFar) return false;
    }
    const PlaneWeight* packed = nullptr;
    if (x.codes && x.codes->element.bits == 8 && x.groups > 1 && x.window.channels == x.groups) {
        int32_t zero = x.zero_point + (x.codes->element.is_signed ? 128 : 0);
        if (zero >= 0 && zero <= 255) packed = plane_weight(shape_of(x));
        if (packed && !packed->whole) packed = nullptr;
    }
    return isa().linears->direct(float_, packed, x, y, threads);
}

const PlaneWeight* LinearWeight::plane_weight(const PlaneShape& shape) {
    const Linears* linears = isa().linears;
    std::lock_guard<std::mutex> guard(lock_);
    if (plane_shape_.inner == 0) plane_shape_ = shape;
    if (plane_shape_ != shape) return nullptr;  // the same codes in another shape
    Planes& of = planes_[linears];
    if (of.state == State::unknown) {
        int64_t panels = (float_.grid.rows + kPanel - 1) / kPanel, k = float_.grid.columns;
        int64_t cells = std::max(shape.cells(k), shape.inner == 1 ? k : 0);  // of integers, or numbers
        of.codes.resize(panels * kPanel * cells * 4 + kSpare);
        of.sums.resize(panels * kPanel);
        of.weight = {of.codes.data(), of.sums.data(), false};
        bool done = linears->pack_planes(float_, shape, of.codes.data(), of.sums.data(), &of.weight.whole);
        of.state = done ? State::yes : State::no;
    }
    return of.state == State::yes ? &of.weight : nullptr;
}

bool LinearWeight::planes(const NativeFormat* format, Image x, QParams given, const Output& y, int threads) {
    constexpr int64_t kMostNumbers = 31;  // channels of codes as numbers: of more, patches pay
    int64_t inner = x.window.channels / x.groups, size = x.batch * x.window.channels;
    for (int64_t n : x.window.size) size *= n;
    Codes codes;
    char stored[8];
    int32_t zero_point;
    const PlaneWeight* packed = nullptr;
    if (format) {
        const Spec& spec = format->spec();
        if (spec.element.family != Family::integer || spec.element.bits > 8) return false;
        if (!given.scale) {
            given = {stored, nullptr, spec.asym ? &zero_point : nullptr, nullptr};
            isa().primitives->choose(spec, {one_block(size), kNoBlocks}, x.x, x.dtype, given, threads);
        }
        if (!codes_of(*format, given.scale, static_cast<int32_t*>(given.zero_point), &codes)) return false;
        isa().primitives->steps(spec, {one_block(1), kNoBlocks}, given, &x.step);
        if (!(std::abs(x.step) <= 0x1p90f)) return false;
        x.by = &codes;
        packed = plane_weight(shape_of(x));
    }
    if (format && !packed && inner > kMostNumbers) return false;
    return isa().linears->planes(float_, packed, x, y, threads);
}

}  // namespace blockscale
