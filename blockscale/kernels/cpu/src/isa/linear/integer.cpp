// Linear layers whose weight and x are integers: exact sums over blocks, scaled and added in
// float32. x is quantized, laid out for the tiles, and multiplied in one parallel region.
#include "../simd/array.h"
#include "../simd/environment.h"
#include "../simd/floats.h"
#include "scratch.h"
#if defined(__AVX512VNNI__)
#include "tile_vnni.h"
#else
#include "tile_madd.h"
#endif

namespace blockscale::BLOCKSCALE_ISA {

const Primitives& primitives();

namespace {

constexpr int64_t kLongest = 65536;          // codes whose products are summed in int32
constexpr int64_t kScratch = 8 << 20;        // bytes of x at a time, quantized
constexpr int64_t kSmallWeight = 640 << 10;  // bytes of a weight that stays in L2
constexpr int64_t kResident = 384 << 10;     // bytes of x that stay there while panels pass by

struct Work {
    const IntegerWeight* w;
    IntegerInput in;
    Output out;
    Blocks kind;
    int64_t block, block_chunks, blocks;  // what sums are exact over
    int64_t weight_every, x_every, x_blocks;
    int64_t tile_rows;                    // of the largest tile
    float x_step;                         // if one scale is for all of x

    // Rows of x at a time: tiles of equal size, or one row less.
    int64_t first, rows, tiles;
    const float* bias;  // [panels * 32]

    int64_t row_codes() const { return w->chunks() * kCodes; }
    int64_t row_of_tile(int64_t tile) const { return tile * rows / tiles; }
};

// Rows of x as the tiles read them.
struct Quantized {
    Code* codes;
    float* x_scales;  // [row][x_blocks]
    int32_t* starts;  // [row][blocks]

    Quantized at(const Work& p, int64_t row) const {
        return {codes + row * p.row_codes(), x_scales + row * p.x_blocks, starts + row * p.blocks};
    }
};

int64_t aligned(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

// Memory for `rows` of them: how much, and where they lie in it.
int64_t quantized_bytes(const Work& p, int64_t rows) {
    return aligned(rows * p.row_codes() * sizeof(Code) + 64) + aligned(rows * p.x_blocks * 4) +
           aligned(rows * p.blocks * 4);
}

Quantized quantized_in(const Work& p, int64_t rows, char* at) {
    char* scales = at + aligned(rows * p.row_codes() * sizeof(Code) + 64);
    return {reinterpret_cast<Code*>(at), reinterpret_cast<float*>(scales),
            reinterpret_cast<int32_t*>(scales + aligned(rows * p.x_blocks * 4))};
}

Work plan_of(const IntegerWeight& w, const IntegerInput& in, const Output& out) {
    Work p{};
    p.w = &w, p.in = in, p.out = out;
    int64_t x_block = in.block ? in.block : w.k;
    p.block = smaller(smaller(w.block, x_block), kLongest);
    p.block_chunks = ceil_div(p.block, kCodes);
    p.blocks = ceil_div(w.k, p.block);
    p.weight_every = ceil_div(w.block, p.block);
    p.x_every = ceil_div(x_block, p.block);
    p.x_blocks = ceil_div(w.k, x_block);
    p.kind = p.blocks == 1     ? Blocks::none
             : p.x_blocks == 1 ? Blocks::weight
                               : Blocks::both;
    p.tile_rows = tile_rows(p.kind);
    return p;
}

// x [count rows] -> patterns, with the steps of its blocks.
void quantize_rows(const Work& p, int64_t row, int64_t count, uint8_t* patterns, float* scale,
                   float* steps) {
    const Spec& spec = *p.in.spec;
    const char* x = static_cast<const char*>(p.in.x) + row * p.w->k * dtype_bytes(p.in.dtype);
    if (p.in.block == 0) {
        Layout all{one_block(count * p.w->k), kNoBlocks};
        QParams given{const_cast<void*>(p.in.scale), nullptr, nullptr};
        primitives().quantize(spec, all, x, p.in.dtype, given, patterns, false, {}, 1);
        for (int64_t i = 0; i < count; ++i) steps[i] = p.x_step;
        return;
    }
    Layout each{{.planes = 1, .rows = count, .columns = p.w->k,
                 .block_planes = 1, .block_rows = 1, .block_columns = p.in.block}, kNoBlocks};
    QParams chosen{scale, nullptr, nullptr};
    primitives().choose_quantize(spec, each, x, p.in.dtype, chosen, patterns, false, {}, 1);
    primitives().steps(spec, each, chosen, steps);
}

// Patterns of `bits` bits -> signed codes, in place.
void spread_signs(uint8_t* patterns, int64_t n, int bits) {
    if (bits == 8) return;
    int shift = 8 - bits;
    for (int64_t i = 0; i < n; ++i)
        patterns[i] = static_cast<int8_t>(patterns[i] << shift) >> shift;
}

int32_t sum_of(const int8_t* codes, int64_t n) {
    int64_t i = 0;
    int32_t sum = 0;
#if defined(__AVX512VNNI__)
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i parts[4] = {};  // one would wait for itself
    for (; i + 256 <= n; i += 256)
        for (int j = 0; j < 4; ++j)
            parts[j] = _mm512_dpbusd_epi32(parts[j], ones, _mm512_loadu_si512(codes + i + 64 * j));
    __m512i sums = _mm512_add_epi32(_mm512_add_epi32(parts[0], parts[1]),
                                    _mm512_add_epi32(parts[2], parts[3]));
    for (; i + 64 <= n; i += 64)
        sums = _mm512_dpbusd_epi32(sums, ones, _mm512_loadu_si512(codes + i));
    if (i < n) {
        __m512i rest = _mm512_maskz_loadu_epi8((uint64_t{1} << (n - i)) - 1, codes + i);
        sums = _mm512_dpbusd_epi32(sums, ones, rest);
        i = n;
    }
    sum = _mm512_reduce_add_epi32(sums);
#endif
    for (; i < n; ++i) sum += codes[i];
    return sum;
}

// The codes of one row into its places in a tile of `count` rows.
void place(const int8_t* codes, int64_t n, int64_t count, Code* to) {
    int64_t whole = n / kCodes, stride = count * kCodes;
    for (int64_t chunk = 0; chunk < whole; ++chunk)
        for (int64_t i = 0; i < kCodes; ++i)
            to[chunk * stride + i] = codes[chunk * kCodes + i];
    if (whole * kCodes == n) return;
    for (int64_t i = 0; i < kCodes; ++i)
        to[whole * stride + i] = whole * kCodes + i < n ? codes[whole * kCodes + i] : 0;
}

struct RowBuffers {
    explicit RowBuffers(const Work& p)
        : patterns(p.tile_rows * p.w->k), scale(p.tile_rows * p.x_blocks) {}

    Array<uint8_t> patterns;
    Array<float> scale;
};

// Quantizes rows of one tile and lays them out.
void prepare_tile(const Work& p, int64_t from, int64_t count, RowBuffers& buffers, Quantized to) {
    quantize_rows(p, p.first + from, count, buffers.patterns, buffers.scale, to.x_scales);
    spread_signs(buffers.patterns, count * p.w->k, p.in.spec->element.bits);
    int32_t factor = p.w->zeros ? -1 : -static_cast<int32_t>(p.w->offset());
    for (int64_t row = 0; row < count; ++row) {
        const int8_t* codes = reinterpret_cast<int8_t*>(buffers.patterns.get()) + row * p.w->k;
        int32_t* starts = to.starts + row * p.blocks;
        for (int64_t block = 0; block < p.blocks; ++block) {
            int64_t at = block * p.block, n = smaller(p.block, p.w->k - at);
            starts[block] = sum_of(codes + at, n) * factor;
        }
        place(codes, p.w->k, count, to.codes + row * kCodes);
    }
}

// The panel's rows of a tile where they do not fill y: a last panel, or another dtype.
void store_part(const Work& p, const float* tile, int64_t row, int64_t count, int64_t panel) {
    int64_t column = panel * kPanel, n = smaller(kPanel, p.w->n - column);
    int64_t bytes = dtype_bytes(p.out.dtype);
    for (int64_t r = 0; r < count; ++r) {
        char* y = static_cast<char*>(p.out.y) + ((row + r) * p.w->n + column) * bytes;
        if (p.out.dtype == Dtype::fp32) {
            memcpy(y, tile + r * kPanel, n * 4);
        } else {
            narrow(tile + r * kPanel, p.out.dtype, n, reinterpret_cast<uint16_t*>(y));
        }
    }
}

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

void multiply(const Work& p, int64_t from, int64_t count, const Quantized& x, int64_t panel,
              Ahead ahead) {
    int64_t scales = panel * p.w->blocks() * kPanel, column = panel * kPanel;
    bool direct = p.out.dtype == Dtype::fp32 && column + kPanel <= p.w->n;
    alignas(64) float buffer[12 * kPanel];
    float* y = direct ? static_cast<float*>(p.out.y) + (p.first + from) * p.w->n + column : buffer;
    Tile t{.weight = p.w->codes + panel * p.w->chunks() * p.w->chunk_bytes(),
           .scales = p.w->scales + scales,
           .zeros = p.w->zeros ? p.w->zeros + scales : nullptr,
           .x = x.codes,
           .starts = x.starts,
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
           .ahead = static_cast<const char*>(ahead.at),
           .ahead_lines = ahead.lines};
    tile_for(p.kind, p.w->nibbles, count)(t);
    if (!direct) store_part(p, buffer, p.first + from, count, panel);
}

// The rows of x that one of the next tiles has, in parts for the panels before it.
Fetched x_ahead(const Work& p, int64_t tile) {
    if (tile >= p.tiles) return {p, nullptr, 0, 1};
    int64_t row = p.w->k * dtype_bytes(p.in.dtype), first = p.row_of_tile(tile);
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
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FullPrecision guard;
        RowBuffers buffers(p);
        Array<char> memory(quantized_bytes(p, p.tile_rows));
        Quantized x = quantized_in(p, p.tile_rows, memory);
#pragma omp for schedule(dynamic)
        for (int64_t tile = 0; tile < p.tiles; ++tile) {
            int64_t from = p.row_of_tile(tile), count = p.row_of_tile(tile + 1) - from;
            Fetched next = x_ahead(p, tile + threads);
            prepare_tile(p, from, count, buffers, x);
            for (int64_t panel = 0; panel < p.w->panels(); ++panel)
                multiply(p, from, count, x, panel, next.of(panel));
        }
    }
}

// Any other: first all rows are quantized, then tiles times panels are shared out so that the tiles
// of an item stay in L2 while its panels pass by.
void run_items(const Work& p, const Quantized& x, int threads) {
    int64_t tiles = larger(1, kResident / larger(1, p.tile_rows * p.row_codes()));
    int64_t groups = ceil_div(p.tiles, tiles);
    int64_t panels = larger(1, smaller(8, p.w->panels() * groups / (threads * 4)));
    int64_t strips = ceil_div(p.w->panels(), panels), items = groups * strips;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FullPrecision guard;
        {
            RowBuffers buffers(p);
#pragma omp for schedule(static)
            for (int64_t tile = 0; tile < p.tiles; ++tile) {
                int64_t from = p.row_of_tile(tile), count = p.row_of_tile(tile + 1) - from;
                prepare_tile(p, from, count, buffers, x.at(p, from));
            }
        }
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items; ++item) {
            int64_t group = item / strips, strip = item % strips;
            int64_t last = smaller(p.w->panels(), (strip + 1) * panels);
            int64_t begin = group * tiles, end = smaller(p.tiles, begin + tiles);
            bool more = item + threads < items;
            int64_t likely_next = more ? (item + threads) % strips * panels : last - 1;
            for (int64_t panel = strip * panels; panel < last; ++panel) {
                int64_t next = panel + 1 < last ? panel + 1 : likely_next;
                Fetched fetched = panel_ahead(p, next, end - begin);
                for (int64_t t = begin; t < end; ++t) {
                    int64_t from = p.row_of_tile(t), count = p.row_of_tile(t + 1) - from;
                    multiply(p, from, count, x.at(p, from), panel, fetched.of(t - begin));
                }
            }
        }
    }
}

// The step of an x that has one, chosen first if none was given.
float step_of_all(Work& p, float* stored, int threads) {
    int64_t size = p.in.rows * p.w->k;
    Layout all{one_block(size), kNoBlocks};
    if (!p.in.scale) {
        QParams chosen{stored, nullptr, nullptr};
        primitives().choose(*p.in.spec, all, p.in.x, p.in.dtype, chosen, threads);
        p.in.scale = stored;
    }
    float step;
    primitives().steps(*p.in.spec, all, {const_cast<void*>(p.in.scale), nullptr, nullptr}, &step);
    return step;
}

}  // namespace

void integers(const IntegerWeight& w, const IntegerInput& in, const Output& out, int threads) {
    if (in.rows == 0 || w.n == 0) return;
    Work p = plan_of(w, in, out);
    float stored;
    if (in.block == 0) p.x_step = step_of_all(p, &stored, threads);
    bool small = w.panels() * w.chunks() * w.chunk_bytes() <= kSmallWeight &&
                 ceil_div(in.rows, p.tile_rows) >= 4 * threads;
    int64_t codes = p.row_codes() * sizeof(Code);
    int64_t most = small ? in.rows : smaller(in.rows, larger(kScratch / codes / 96, 1) * 96);
    int64_t bias_bytes = w.panels() * kPanel * 4;
    char* at = linear_scratch().of(bias_bytes + (small ? 0 : quantized_bytes(p, most)));
    float* bias = reinterpret_cast<float*>(at);
    memset(bias, 0, bias_bytes);
    if (out.bias) memcpy(bias, out.bias, w.n * 4);
    p.bias = bias;
    Quantized x = quantized_in(p, most, at + bias_bytes);
    for (p.first = 0; p.first < in.rows; p.first += most) {
        p.rows = smaller(most, in.rows - p.first);
        p.tiles = ceil_div(p.rows, p.tile_rows);
        small ? run_tiles(p, threads) : run_items(p, x, threads);
    }
}

}  // namespace blockscale::BLOCKSCALE_ISA
