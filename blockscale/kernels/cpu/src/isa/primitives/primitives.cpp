// SPDX-License-Identifier: BSD-3-Clause
// The primitives of one instruction set: units of work through statistics, scales and chunks.
#include "boxes.h"
#include "rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// The tensor whose scales are chosen.
struct Source {
    const Spec& spec;
    const void* x;
    Dtype dtype;
    int threads;
    int64_t ahead = 0;  // see Task
};

// Adds the sums over a rectangle. odd: some of it may not be finite.
void add_any_sums(const Source& from, const Grid& g, const Rectangle& r, bool odd,
                  const Shift* shifts, const float* above, const Statistics& s) {
    auto add = g.interleaved ? (odd ? add_interleaved_sums<true> : add_interleaved_sums<false>)
                             : (odd ? add_sums<true> : add_sums<false>);
    add(g, from.x, from.dtype, r, shifts, above, s);
}

// The sums of section 3.2 over the planes of a unit, and from them the mean of each block, whose
// bits replace the magnitude in s.high.
void unit_means(const Source& from, const Plan& p, const Rectangle& unit, const Statistics& s,
                int64_t n) {
    Array<Shift> shifts(n);
    Array<int32_t> exponents(n);
    Array<float> above(n);
    bool odd = false;
    for (int64_t i = 0; i < n; ++i) {
        shifts[i] = shift_of(s.high[i], &exponents[i]);
        above[i] = -1.0f;
        odd |= s.odd[i];
    }
    int passes = summing_passes(from.spec.statistic);
    for (int pass = 0; pass < passes; ++pass) {
        memset(s.sum, 0, n * sizeof(int64_t));
        memset(s.count, 0, n * sizeof(int64_t));
        p.for_unit_planes(unit, [&](const Rectangle& r) {
            add_any_sums(from, p.grid, r, odd, shifts, above, s);
        });
        for (int64_t i = 0; i < n; ++i) {
            float mean = mean_of(s.sum[i], s.count[i], exponents[i]);
            above[i] = mean * 0.699999988079071044921875f;  // TWN, equation 6
            if (pass == passes - 1) s.high[i] = to_bits(mean);
        }
    }
}

// The range of each block of a unit over its finite elements; whether any block has others.
bool unit_statistics(const Source& from, const Plan& p, const Rectangle& unit, const Statistics& s,
                     int64_t n) {
    auto add = [&]<bool MASKED>() {
        reset(s, n);
        if (const Interleaved* in = p.grid.interleaved) {
            ColumnStatistics columns(unit.columns, s);
            p.for_unit_planes(unit, [&](const Rectangle& r) {
                add_columns<MASKED>(p.grid, from.x, from.dtype, r, columns.view);
            });
            return fold_columns(*in, unit.columns, columns.view, s);
        }
        int64_t done = add_boxes<MASKED>(p, from.x, from.dtype, unit, s);
        Rectangle left = unit;
        left.column += done, left.columns -= done;
        if (left.columns == 0) return;
        p.for_unit_planes(left, [&](const Rectangle& r) {
            add_rectangle<MASKED>(p.grid, from.x, from.dtype, r, s.at(done / p.grid.block_columns),
                                  from.ahead);
        });
    };
    memset(s.odd, 0, n);
    add.template operator()<false>();
    bool odd = find_odd(s, n);
    if (odd) add.template operator()<true>();
    return odd;
}

// Numerators of n neighbouring blocks -> their stored scales and zero points from `first` on.
void store_blocks(const Spec& spec, const Statistics& s, int64_t n, QParams to, int64_t first,
                  float* steps) {
    to_numerators(spec, s, n);
    const float* high = reinterpret_cast<const float*>(s.high);
    const float* low = reinterpret_cast<const float*>(s.low);
    const uint8_t* odd = s.odd;
    store_scales(spec, low, high, odd, n, to.scale, first);
    load_steps(spec, to.scale, first, n, steps);
    if (spec.asym) store_zero_points(spec, low, steps, n, to.zero_point, first);
    if (spec.offset != Stored::none) store_offsets(spec, low, steps, n, to.offset, first);
}

// Means over blocks that no unit holds: the sums are merged pass by pass.
void all_means(const Source& from, const Plan& p, const Statistics& s) {
    int64_t total = p.grid.blocks();
    Array<Shift> shifts(total);
    Array<int32_t> exponents(total);
    Array<float> above(total);
    bool odd = memchr(s.odd, 1, total);
    for (int64_t i = 0; i < total; ++i) {
        shifts[i] = shift_of(s.high[i], &exponents[i]);
        above[i] = -1.0f;
    }
    int passes = summing_passes(from.spec.statistic);
    for (int pass = 0; pass < passes; ++pass) {
        memset(s.sum, 0, total * sizeof(int64_t));
        memset(s.count, 0, total * sizeof(int64_t));
        for_units(p.units(), from.threads, p.threads_pay, [&](int64_t i) {
            Rectangle r = p.unit(i);
            if (r.rows == 0) return;
            int64_t n = p.blocks(r), first = p.block(r);
            StatisticsBuffer buffer(from.spec, n);
            Statistics part = buffer.view();
            memset(part.sum, 0, n * sizeof(int64_t));
            memset(part.count, 0, n * sizeof(int64_t));
            add_any_sums(from, p.grid, r, odd, shifts + first, above + first, part);
#pragma omp critical(blockscale_merge)
            for (int64_t b = 0; b < n; ++b) {
                s.sum[first + b] += part.sum[b];
                s.count[first + b] += part.count[b];
            }
        });
        for (int64_t i = 0; i < total; ++i) {
            float mean = mean_of(s.sum[i], s.count[i], exponents[i]);
            above[i] = mean * 0.699999988079071044921875f;
            if (pass == passes - 1) s.high[i] = to_bits(mean);
        }
    }
}

// The statistics of every block of the tensor, means included.
void all_statistics(const Source& from, const Plan& p, const Statistics& s) {
    if (!p.cached || p.units() == 0) {  // else each unit does that for its own
        reset(s, p.grid.blocks());
        memset(s.odd, 0, p.grid.blocks());
    }
    for_units(p.units(), from.threads, p.threads_pay, [&](int64_t i) {
        Rectangle r = p.unit(i);
        if (r.rows == 0) return;
        int64_t n = p.blocks(r), first = p.block(r);
        StatisticsBuffer buffer(from.spec, n);
        Statistics part = p.cached ? s.at(first) : buffer.view();
        unit_statistics(from, p, r, part, n);
        if (p.cached) {
            if (part.sum) unit_means(from, p, r, part, n);
            return;
        }
#pragma omp critical(blockscale_merge)
        merge(part, n, s.at(first));
    });
    if (s.sum && !p.cached) all_means(from, p, s);
}

bool choose_all(const Source& from, const Layout& layout, QParams to);

// Numerators -> the outer scales, and the inner codes under them (section 3.5).
void store_two_levels(const Spec& spec, const Grid& inner_grid, float* a, const uint8_t* odd,
                      int64_t n, QParams to, int threads) {
    const Spec& inner = *spec.inner;
    bool any_odd = spec.poisons && memchr(odd, 1, n);
    Array<float> without(any_odd ? n : 1);  // poisoned blocks leave the outer scale alone
    for (int64_t i = 0; any_odd && i < n; ++i) without[i] = odd[i] ? 0.0f : a[i];
    const float* numerators = any_odd ? without.get() : a;
    Spec outer_spec{};
    outer_spec.statistic = Statistic::magnitude;
    outer_spec.scale = ScaleKind::fp32;
    outer_spec.levels = spec.outer_levels;
    choose_all({outer_spec, numerators, Dtype::fp32, threads}, {inner_grid, {}},
               {to.outer, nullptr, nullptr, nullptr});
    OuterIndex outer(inner_grid);
    uint8_t* codes = static_cast<uint8_t*>(to.scale);
    for_units(ceil_div(n, kChunk), threads, n >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        alignas(64) float ratios[kChunk];
        int64_t first = unit * kChunk, count = smaller(kChunk, n - first);
        for (int64_t i = 0; i < count; ++i) ratios[i] = a[first + i] / spec.levels;
        if (outer.single) {
            for (int64_t i = 0; i < count; ++i) ratios[i] = ratios[i] / to.outer[0];
        } else {
            for (int64_t i = 0; i < count; ++i) ratios[i] = ratios[i] / to.outer[outer(first + i)];
        }
        for (int64_t i = 0; i < count; ++i)
            ratios[i] = clamp(ratios[i], inner.element.smallest_normal, inner.element.high);
        encode(inner, ratios, nullptr, nullptr, count, codes + first);
        for (int64_t i = 0; any_odd && i < count; ++i)
            codes[first + i] = odd[first + i] ? inner.element.nan_code : codes[first + i];
    });
}

// Returns whether all numbers are finite.
bool choose_all(const Source& source, const Layout& layout, QParams to) {
    Source from = source;
    from.ahead = kAhead;
    FullPrecision guard;
    Plan p = make_plan(layout.grid, true);
    int64_t total = p.grid.blocks();
    StatisticsBuffer buffer(from.spec, total);
    Statistics s = buffer.view();
    all_statistics(from, p, s);
    bool finite = !memchr(s.odd, 1, total);
    if (from.spec.scale == ScaleKind::two_level) {
        to_numerators(from.spec, s, total);
        float* a = reinterpret_cast<float*>(s.high);
        store_two_levels(from.spec, layout.inner, a, s.odd, total, to, from.threads);
        bool moved = from.spec.offset != Stored::none;
        if (from.spec.asym || moved) {
            Array<float> steps(total);
            table_steps(from.spec, layout, to, 0, total, steps);
            const float* low = reinterpret_cast<float*>(s.low);
            moved ? store_offsets(from.spec, low, steps, total, to.offset, 0)
                  : store_zero_points(from.spec, low, steps, total, to.zero_point, 0);
        }
        return finite;
    }
    Array<float> steps(total);
    store_blocks(from.spec, s, total, to, 0, steps);
    return finite;
}

// The scales of blocks that lie interleaved, for each of the n columns of a strip.
struct ColumnScales {
    ColumnScales(const Interleaved& in, int64_t n, const BlockScales& s)
        : steps(n / in.each), factors(n / in.each), offsets(n / in.each), zero_points(n / in.each) {
        float* by = s.factors.by == s.steps ? steps.get() : factors.get();
        spread(in, n, s.steps, steps.get());
        if (s.factors.by && s.factors.by != s.steps) spread(in, n, s.factors.by, by);
        if (s.zero_points) spread(in, n, s.zero_points, zero_points.get());
        if (s.offsets) spread(in, n, s.offsets, offsets.get());
        view = {steps, {s.factors.by ? by : nullptr, s.factors.multiply},
                s.zero_points ? zero_points.get() : nullptr, s.offsets ? offsets.get() : nullptr};
    }

    Array<float> steps, factors, offsets, zero_points;
    BlockScales view;
};

// A unit whose scales are in `scales`, at index `at`: encode, or whatever the task is.
void run_unit(Task& t, const Plan& p, const Layout& layout, const Rectangle& unit, QParams scales,
              int64_t at, int64_t n, float* steps, float* factors) {
    Factors by{nullptr, false};
    if (t.job != Job::dequantized)
        by = block_factors(t.spec, layout, scales, at, n, steps, factors);
    bool moved = t.spec.offset != Stored::none;
    Array<float> offsets(moved ? n : 1);
    load_offsets(t.spec, scales.offset, at, n, offsets);
    Array<float> zero_points(t.spec.asym ? n : 1);
    if (t.spec.asym) load_zero_points(t.spec, scales.zero_point, at, n, zero_points);
    BlockScales s{steps, by, t.spec.asym ? zero_points.get() : nullptr,
                  moved ? offsets.get() : nullptr};
    t.of_words = !moved && t.table && by.multiply && t.dtype == Dtype::bf16 &&
                 t.table->serves_bits(by.by, n);
    if (const Interleaved* in = p.grid.interleaved) {
        ColumnScales each(*in, unit.columns, s);
        t.grid.block_columns = in->each;
        return p.for_unit_planes(unit, [&](const Rectangle& r) { run_rectangle(t, r, each.view); });
    }
    p.for_unit_planes(unit, [&](const Rectangle& r) { run_rectangle(t, r, s); });
}

// Everything with a given scale.
void run_given(Task t, const Layout& layout, QParams scales, int threads) {
    Plan p = make_plan(layout.grid, false);
    t.grid = p.grid;
    t.ahead = kAhead;
    CodeTable table(t.spec, t.job == Job::codes);
    if (table.serves) t.table = &table;
    for_units(p.units(), threads, p.threads_pay, [&](int64_t i) {
        Rectangle r = p.unit(i);
        if (r.rows == 0) return;
        int64_t n = p.blocks(r), at = p.block(r);
        Array<float> steps(n), factors(n);
        Task of_unit = t;
        table_steps(t.spec, layout, scales, at, n, steps);
        run_unit(of_unit, p, layout, r, scales, at, n, steps, factors);
    });
}

// Everything that chooses its scale: unit by unit while it is in the cache, if blocks are small
// and their scales need no others; else all scales first.
void run_chosen(Task t, const Layout& layout, QParams scales, int threads) {
    Source from{t.spec, t.x, t.dtype, threads};
    // Small pieces cost more calls, which pays where all else waits for memory.
    bool meant = summing_passes(t.spec.statistic) > 0;
    bool waits = t.stream && !meant && t.spec.rounding != Rounding::stochastic;
    Plan p = make_plan(layout.grid, true, waits);
    if (!p.cached || t.spec.scale == ScaleKind::two_level) {
        t.finite = choose_all(from, layout, scales);
        return run_given(t, layout, scales, threads);
    }
    t.grid = p.grid;
    t.ahead = p.ahead();
    CodeTable table(t.spec, t.job == Job::codes);
    if (table.serves) t.table = &table;
    for_units(p.units(), threads, p.threads_pay, [&](int64_t i) {
        Rectangle unit = p.unit(i), r = unit;
        Task of_unit = t;
        int64_t at = p.block(unit), most = p.most_blocks();
        StatisticsBuffer buffer(t.spec, most);
        Array<float> steps(most), factors(most);
        Statistics s = buffer.view();
        for (int64_t c = 0; c < unit.columns; c += p.piece) {
            r.column = unit.column + c;
            r.columns = smaller(p.piece, unit.columns - c);
            int64_t n = p.blocks(r);
            of_unit.finite = !unit_statistics(from, p, r, s, n);
            if (s.sum) unit_means(from, p, r, s, n);
            store_blocks(t.spec, s, n, scales, at, steps);
            run_unit(of_unit, p, layout, r, scales, at, n, steps, factors);
            at += n;
        }
    });
}

// Room for the scales of a tensor that nobody asked to keep.
struct OwnScales {
    explicit OwnScales(const Spec& spec, const Layout& layout)
        : scale(layout.grid.blocks()), outer(layout.inner.blocks() + 1),
          zero_point(spec.asym ? layout.grid.blocks() : 1),
          offset(spec.offset == Stored::none ? 1 : layout.grid.blocks()) {}

    QParams view() { return {scale.get(), outer, zero_point, offset.get()}; }

    Array<float> scale;
    Array<float> outer;
    Array<int32_t> zero_point;
    Array<float> offset;
};

bool streams(int64_t size, int64_t bytes_in, int64_t bytes_out) {
    return size * (bytes_in + bytes_out) >= chosen(Choice::stream_bytes);
}

void choose(const Spec& spec, const Layout& layout, const void* x, Dtype dtype, QParams to,
            int threads) {
    choose_all({spec, x, dtype, threads}, layout, to);
}

Task codes_task(const Spec& spec, const Layout& layout, const void* x, Dtype dtype, void* codes,
                bool packed, Seed seed) {
    bool stream = streams(layout.grid.size(), dtype_bytes(dtype), spec.code_bytes());
    return {.spec = spec, .grid = layout.grid, .job = Job::codes, .x = x, .dtype = dtype,
            .to = codes, .packed = packed, .stream = stream, .seed = seed};
}

void quantize(const Spec& spec, const Layout& layout, const void* x, Dtype dtype, QParams scales,
              void* codes, bool packed, Seed seed, int threads) {
    run_given(codes_task(spec, layout, x, dtype, codes, packed, seed), layout, scales, threads);
}

void choose_quantize(const Spec& spec, const Layout& layout, const void* x, Dtype dtype,
                     QParams scales, void* codes, bool packed, Seed seed, int threads) {
    run_chosen(codes_task(spec, layout, x, dtype, codes, packed, seed), layout, scales, threads);
}

void dequantize(const Spec& spec, const Layout& layout, const void* codes, bool packed,
                QParams scales, void* y, Dtype dtype, int threads) {
    bool stream = streams(layout.grid.size(), spec.code_bytes(), dtype_bytes(dtype));
    Task t{.spec = spec, .grid = layout.grid, .job = Job::dequantized, .x = codes, .dtype = dtype,
           .to = y, .packed = packed, .stream = stream};
    run_given(t, layout, scales, threads);
}

void run_either(const Task& t, const Layout& layout, bool given, QParams scales, int threads) {
    if (given) return run_given(t, layout, scales, threads);
    OwnScales own(t.spec, layout);
    run_chosen(t, layout, own.view(), threads);
}

void fake_quantize(const Spec& spec, const Layout& layout, const void* x, Dtype dtype, bool given,
                   QParams scales, void* y, Seed seed, int threads) {
    bool stream = streams(layout.grid.size(), dtype_bytes(dtype), dtype_bytes(dtype));
    Task t{.spec = spec, .grid = layout.grid, .job = Job::values, .x = x, .dtype = dtype,
           .to = y, .stream = stream, .seed = seed};
    run_either(t, layout, given, scales, threads);
}

void straight_through(const Spec& spec, const Layout& layout, const void* x, Dtype dtype,
                      bool given, QParams scales, const void* gradient, Dtype gradient_dtype,
                      void* y, int threads) {
    Task t{.spec = spec, .grid = layout.grid, .job = Job::masked, .x = x, .dtype = dtype,
           .to = y, .gradient = gradient, .gradient_dtype = gradient_dtype};
    run_either(t, layout, given, scales, threads);
}

}  // namespace

const Primitives& primitives() {
    static const Primitives table{choose,        quantize,         choose_quantize, dequantize,
                                  fake_quantize, straight_through, pack,            unpack,
                                  decode_rows,   all_steps,        all_offsets,     all_zero_points,
                                  embedding,     round_columns,    block_errors};
    return table;
}

}  // namespace blockscale::BLOCKSCALE_ISA
