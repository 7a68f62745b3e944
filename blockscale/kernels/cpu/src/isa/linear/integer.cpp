// SPDX-License-Identifier: BSD-3-Clause
// Linear layers whose weight and x are integers: exact sums over blocks, scaled and added in
// float32. x is quantized, laid out for the tiles, and multiplied in one parallel region.
#include "../simd/environment.h"
#include "epilogue.h"
#include "rows.h"
#include "scratch.h"
#include "shifts.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kScratch = 8 << 20;  // bytes of x at a time, quantized

template <Blocks B>
RunTile tile_with(bool nibbles, int64_t rows) {
    return nibbles ? tile_of<B, true>(rows) : tile_of<B, false>(rows);
}

RunTile tile_for(Blocks kind, bool nibbles, int64_t rows) {
    switch (kind) {
        case Blocks::none: return tile_with<Blocks::none>(nibbles, rows);
        case Blocks::weight: return tile_with<Blocks::weight>(nibbles, rows);
        case Blocks::both: return tile_with<Blocks::both>(nibbles, rows);
    }
    __builtin_unreachable();
}

// What a tile fetches for those after it.
struct Ahead {
    const void* at;
    int64_t lines;  // for each chunk
};

// Memory that many tiles fetch together, each its part.
struct Fetched {
    const char* from;
    int64_t size, lines, part;

    Fetched(const Work& p, const void* at, int64_t bytes, int64_t parts)
        : from(static_cast<const char*>(at)),
          size(bytes),
          lines(ceil_div(bytes, 64 * parts * p.w->chunks())),
          part(lines * p.w->chunks() * 64) {}

    Ahead of(int64_t i) const { return i * part < size ? Ahead{from + i * part, lines} : Ahead{}; }
};

// A tile's results before they are what y holds: numbers, or sums that shifts end.
union alignas(64) Buffer {
    float numbers[kTileRows * kPanel];
    int32_t integers[kTileRows * kPanel];
};

// Rows of x times a panel; y: `buffer` or, if `direct`, the results' own place.
Tile tile_at(const Work& p, int64_t from, const Quantized& x, int64_t panel, Ahead ahead, bool direct,
             Buffer& buffer) {
    int64_t scales = panel * p.w->blocks() * kPanel, column = panel * kPanel;
    float* y = direct ? static_cast<float*>(p.out.y) + (p.first + from) * p.w->n + column : buffer.numbers;
    return {.weight = p.w->codes + panel * p.w->chunks() * p.w->chunk_bytes(),
            .scales = p.w->scales + scales,
            .zeros = p.w->zeros ? p.w->zeros + scales : nullptr,
            .sums = p.panel_sums ? p.panel_sums + panel * p.blocks * kPanel : nullptr,
            .shifts = x.shifts,
            .x = x.codes,
            .starts = p.centred() ? nullptr : x.starts,
            .x_scales = x.x_scales,
            .x_blocks = p.x_blocks,
            .chunks = p.w->chunks(),
            .block_chunks = p.block_chunks,
            .blocks = p.blocks,
            .weight_every = p.weight_every,
            .x_every = p.x_every,
            .bias = p.bias + column,
            .y = y,
            .y_stride = direct ? p.w->n : kPanel,
            .integers = p.out.shifts ? buffer.integers : nullptr,
            .ahead = static_cast<const char*>(ahead.at),
            .ahead_lines = ahead.lines};
}

bool is_direct(const Work& p, int64_t panel) { return is_plain(p.out) && (panel + 1) * kPanel <= p.w->n; }

void store_buffer(const Work& p, Buffer& buffer, Place at) {
    if (p.out.shifts) return end_tile(*p.out.shifts, p.w->n, {buffer.integers}, at, p.out.y);
    store_tile(p.out, p.w->n, buffer.numbers, at);
}

void multiply(const Work& p, int64_t from, int64_t count, const Quantized& x, int64_t panel,
              Ahead ahead) {
    bool direct = is_direct(p, panel);
    Buffer buffer;
    tile_for(p.kind, p.w->nibbles, count)(tile_at(p, from, x, panel, ahead, direct, buffer));
    if (!direct) store_buffer(p, buffer, {p.first + from, count, panel * kPanel});
}

// The same of the tiles from `begin` to `end` by matrices. x: the first one's; tile t fetches part t + `part`.
// A piece of the panel stays in the first-level cache while the tiles pass by.
void multiply_tiles(const Work& p, int64_t begin, int64_t end, const Quantized& x, int64_t panel,
                    const Fetched& fetched, int64_t part, Tiles& tiles) {
    bool direct = is_direct(p, panel), whole = p.kind == Blocks::none;
    int64_t unit = whole ? p.depth : p.block_chunks * kCodes;  // codes
    int64_t units = ceil_div(p.w->chunks() * kCodes, unit);
    int64_t most = end - begin == 1 && !p.unpacked() ? units
                   : larger(1, chosen(Choice::matrix_codes) / unit);
    most = smaller(most, units);
    int64_t sums = (end - begin) * sizeof(TileSums);
    // Products along k reach beyond it, where x has zeros.
    char* memory = linear_scratch<Use::own>().of(sums + kPanel * (most * unit + p.depth));
    auto* all = reinterpret_cast<TileSums*>(memory);
    auto* unpacked = reinterpret_cast<uint8_t*>(memory + sums);
    Buffer buffer;
    int64_t first_row = p.row_of_tile(begin);
    for (int64_t first = 0; first < units; first += most) {
        int64_t count = smaller(most, units - first), chunk = first * unit / kCodes;
        int64_t chunks = smaller(count * unit / kCodes, p.w->chunks() - chunk);
        const uint8_t* codes = p.w->codes + (panel * p.w->chunks() + chunk) * p.w->chunk_bytes();
        if (p.unpacked())
            unpack_codes(p.w->nibbles, codes, chunks * p.w->chunk_bytes(), p.centred(), unpacked);
        Piece piece{first, count, first == 0, first + count == units, p.unpacked() ? unpacked : codes,
                    p.unpacked()};
        for (int64_t t = begin; t < end; ++t) {
            int64_t from = p.row_of_tile(t), rows = p.row_of_tile(t + 1) - from;
            Tile tile = tile_at(p, from, x.at(p, from - first_row), panel,
                                fetched.of(t - begin + part), direct, buffer);
            TileSums& sums = all[t - begin];
            if (p.out.shifts) tile.integers = sums.integers;
            matrix_piece(tile, p.kind, rows, p.depth, p.centred(), piece, sums, tiles);
            piece.near = true;
            if (!piece.ends || direct) continue;
            Place at{p.first + from, rows, panel * kPanel};
            if (!p.out.shifts) {
                store_tile(p.out, p.w->n, buffer.numbers, at);
            } else if (starts_apart(tile)) {
                TileEnds from_sums{sums.integers, tile.starts, tile.blocks, tile.sums};
                end_tile(*p.out.shifts, p.w->n, from_sums, at, p.out.y);
            } else {
                end_tile(*p.out.shifts, p.w->n, {sums.integers}, at, p.out.y);
            }
        }
    }
}

// The rows of x that one of the next tiles has, in parts for the panels before it.
Fetched x_ahead(const Work& p, int64_t tile) {
    if (tile >= p.tiles || p.in.window) return {p, nullptr, 0, 1};
    int64_t first = p.row_of_tile(tile), row = p.w->k * dtype_bytes(p.in.dtype);
    if (p.in.codes) row = p.in.spec->row_bytes(p.w->k);
    return {p, static_cast<const char*>(p.in.x) + (p.first + first) * row,
            (p.row_of_tile(tile + 1) - first) * row, p.w->panels()};
}

// The next panel, in parts for the tiles that meet this one. One to three rows read the memory as
// fast as it goes by themselves.
Fetched panel_ahead(const Work& p, int64_t panel, int64_t tiles) {
    int64_t size = p.w->chunks() * p.w->chunk_bytes();
    return {p, p.w->codes + panel * size, p.rows > 3 ? size : 0, tiles};
}

// A weight that stays in L2: each tile of x is quantized and multiplied while it is in L1.
void run_tiles(const Work& p, int threads) {
    Lack lack;
#pragma omp parallel num_threads(startable(threads)) if (threads > 1)
    {
        FullPrecision guard;
        Tiles matrices(p.depth);
        Later<RowBuffers> buffers;
        Later<Array<char>> memory;
        Quantized x{};
        lack.carry([&] {
            buffers.make(p), memory.make(quantized_bytes(p, p.tile_rows));
            x = quantized_in(p, p.tile_rows, *memory);
        });
#pragma omp for schedule(dynamic)
        for (int64_t tile = 0; tile < p.tiles; ++tile) lack.carry([&] {
            int64_t from = p.row_of_tile(tile), count = p.row_of_tile(tile + 1) - from;
            Fetched next = x_ahead(p, tile + threads);
            prepare_rows(p, from, count, p.side(count), *buffers, x);
            for (int64_t panel = 0; panel < p.w->panels(); ++panel) {
                if (p.depth) {
                    multiply_tiles(p, tile, tile + 1, x, panel, next, panel, matrices);
                } else {
                    multiply(p, from, count, x, panel, next.of(panel));
                }
            }
        });
    }
    lack.raise();
}

// How many parts of a tile are quantized by themselves: tiles of matrices are few.
int64_t parts_of(const Work& p, int threads) {
    return smaller(8, larger(1, 2 * threads / larger(1, p.tiles)));
}

void prepare_part(const Work& p, const Quantized& x, int64_t tile, int64_t part, int64_t parts,
                  RowBuffers& buffers) {
    int64_t first = p.row_of_tile(tile), count = p.row_of_tile(tile + 1) - first;
    int64_t from = part * count / parts, size = (part + 1) * count / parts - from;
    if (size == 0) return;
    Quantized to = x.at(p, first + from);
    to.codes = x.at(p, first).codes + from * p.together();
    prepare_rows(p, first + from, size, p.side(count), buffers, to);
}

// Any other: first all rows are quantized, then tiles times panels are shared out so that the tiles
// of an item stay in L2 while its panels pass by.
void run_items(const Work& p, const Quantized& x, int threads) {
    int64_t resident = chosen(p.depth ? Choice::matrix_rows_bytes : Choice::rows_bytes);
    int64_t tiles = larger(1, resident / larger(1, p.tile_rows * p.row_codes()));
    int64_t groups = ceil_div(p.tiles, tiles);
    Lack lack;
    int64_t panels = larger(1, smaller(8, p.w->panels() * groups / (threads * 4)));
    int64_t strips = ceil_div(p.w->panels(), panels), items = groups * strips;
#pragma omp parallel num_threads(startable(threads)) if (threads > 1)
    {
        FullPrecision guard;
        Tiles matrices(p.depth);
        {
            Later<RowBuffers> buffers;
            lack.carry([&] { buffers.make(p); });
            int64_t parts = p.depth ? parts_of(p, threads) : 1;  // of each tile
#pragma omp for schedule(static)
            for (int64_t i = 0; i < p.tiles * parts; ++i)
                lack.carry([&] { prepare_part(p, x, i / parts, i % parts, parts, *buffers); });
        }
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items; ++item) lack.carry([&] {
            int64_t group = item / strips, strip = item % strips;
            int64_t last = smaller(p.w->panels(), (strip + 1) * panels);
            int64_t begin = group * tiles, end = smaller(p.tiles, begin + tiles);
            bool more = item + threads < items;
            int64_t likely_next = more ? (item + threads) % strips * panels : last - 1;
            for (int64_t panel = strip * panels; panel < last; ++panel) {
                int64_t next = panel + 1 < last ? panel + 1 : likely_next;
                Fetched fetched = panel_ahead(p, next, end - begin);
                if (p.depth)
                    multiply_tiles(p, begin, end, x.at(p, p.row_of_tile(begin)), panel, fetched, 0, matrices);
                for (int64_t t = begin; t < end && !p.depth; ++t) {
                    int64_t from = p.row_of_tile(t), count = p.row_of_tile(t + 1) - from;
                    multiply(p, from, count, x.at(p, from), panel, fetched.of(t - begin));
                }
            }
        });
    }
    lack.raise();
}

// The step and shift of an x that has one scale, chosen first if none was given.
void scale_of_all(Work& p, float* stored, int32_t* zero_point, int threads) {
    int64_t size = p.in.codes ? 1 : p.in.rows * p.w->k;
    Layout all{one_block(size), kNoBlocks};
    if (!p.in.scale) {
        QParams chosen{stored, nullptr, zero_point, nullptr};
        primitives().choose(*p.in.spec, all, p.in.x, p.in.dtype, chosen, threads);
        p.in.scale = stored;
        if (p.in.spec->asym) p.in.zero_point = zero_point;
    }
    QParams given{const_cast<void*>(p.in.scale), nullptr, nullptr, nullptr};
    primitives().steps(*p.in.spec, all, given, &p.x_step);
    p.x_shift = shift_of_zero(p.in.spec->element, p.in.zero_point ? p.in.zero_point[0] : 0);
}

// Memory that all threads read: biases of all panels, and sums of the weight times the shift of x.
struct Shared {
    int64_t bias_bytes, sum_bytes;

    explicit Shared(const Work& p)
        : bias_bytes(p.w->panels() * kPanel * 4),
          sum_bytes(p.shifted && !p.row_shifts() ? bias_bytes : 0) {}

    void fill(Work& p, char* at) const {
        float* bias = reinterpret_cast<float*>(at);
        memset(bias, 0, bias_bytes);
        if (p.out.bias) memcpy(bias, p.out.bias, p.w->n * 4);
        p.bias = bias;
        p.panel_sums = p.sums.sums;
        if (!sum_bytes) return;
        uint32_t* sums = reinterpret_cast<uint32_t*>(at + bias_bytes);
        for (int64_t i = 0; i < sum_bytes / 4; ++i)  // unsigned: they may wrap
            sums[i] = static_cast<uint32_t>(p.sums.sums[i]) * static_cast<uint32_t>(p.x_shift);
        p.panel_sums = reinterpret_cast<int32_t*>(sums);
    }
};

}  // namespace

void integers(const IntegerWeight& w, const IntegerInput& in, const IntegerSums& sums,
              const Output& out, int threads) {
    if (in.rows == 0 || w.n == 0) return;
    Work p = plan_of(w, in, sums, out);
    float stored;
    int32_t zero_point;
    if (in.block == 0) scale_of_all(p, &stored, &zero_point, threads);
    int64_t weight_bytes = w.panels() * w.chunks() * w.chunk_bytes();
    bool small = !p.unpacked() && weight_bytes <= chosen(Choice::weight_bytes) &&
                 ceil_div(in.rows, p.tile_rows) >= 4 * threads;
    int64_t codes = p.row_codes() * sizeof(Code);
    int64_t most = small ? in.rows : smaller(in.rows, larger(kScratch / codes / 96, 1) * 96);
    Shared shared(p);
    int64_t before = shared.bias_bytes + shared.sum_bytes;
    char* at = linear_scratch().of(before + (small ? 0 : quantized_bytes(p, most)));
    shared.fill(p, at);
    Quantized x = quantized_in(p, most, at + before);
    for (p.first = 0; p.first < in.rows; p.first += most) {
        p.rows = smaller(most, in.rows - p.first);
        p.tiles = ceil_div(p.rows, p.tile_rows);
        small ? run_tiles(p, threads) : run_items(p, x, threads);
    }
}

}  // namespace blockscale::BLOCKSCALE_ISA
