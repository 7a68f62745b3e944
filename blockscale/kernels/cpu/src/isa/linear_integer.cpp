// Linear layers whose weight and x are integers: exact sums over blocks, scaled and added in
// float32. x is quantized, laid out for the tiles, and multiplied in one parallel region.
#include "floats.h"
#include "linear_scratch.h"
#if defined(__AVX512VNNI__)
#include "linear_tile_vnni.h"
#else
#include "linear_tile_madd.h"
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

    // Rows of x in scratch: tiles of equal size, or one row less.
    int64_t first, rows, tiles;
    Code* codes;
    float* x_scales;   // [row][x_blocks]
    int32_t* starts;   // [row][blocks]
    const float* bias; // [panels * 32]

    int64_t row_codes() const { return w->chunks() * kCodes; }
    int64_t row_of_tile(int64_t tile) const { return tile * rows / tiles; }
};

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
        Layout all{{1, 1, count * p.w->k, 1, 1, count * p.w->k}, {1, 1, 0, 1, 1, 1}};
        QParams given{const_cast<void*>(p.in.scale), nullptr, nullptr};
        primitives().quantize(spec, all, x, p.in.dtype, given, patterns, false, {}, 1);
        for (int64_t i = 0; i < count; ++i) steps[i] = p.x_step;
        return;
    }
    Layout each{{1, count, p.w->k, 1, 1, p.in.block}, {1, 1, 0, 1, 1, 1}};
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
    __m512i sums = _mm512_setzero_si512();
    for (; i + 64 <= n; i += 64)
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), _mm512_loadu_si512(codes + i));
    if (i < n) {
        __m512i rest = _mm512_maskz_loadu_epi8((uint64_t{1} << (n - i)) - 1, codes + i);
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), rest);
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

// Quantizes the rows of one tile and lays them out.
void prepare_tile(const Work& p, int64_t tile, RowBuffers& buffers) {
    int64_t from = p.row_of_tile(tile), count = p.row_of_tile(tile + 1) - from;
    quantize_rows(p, p.first + from, count, buffers.patterns, buffers.scale,
                  p.x_scales + from * p.x_blocks);
    spread_signs(buffers.patterns, count * p.w->k, p.in.spec->element.bits);
    int32_t factor = p.w->zeros ? -1 : -static_cast<int32_t>(p.w->offset());
    Code* to = p.codes + from * p.row_codes();
    for (int64_t row = 0; row < count; ++row) {
        const int8_t* codes = reinterpret_cast<int8_t*>(buffers.patterns.get()) + row * p.w->k;
        int32_t* starts = p.starts + (from + row) * p.blocks;
        for (int64_t block = 0; block < p.blocks; ++block) {
            int64_t at = block * p.block, n = smaller(p.block, p.w->k - at);
            starts[block] = sum_of(codes + at, n) * factor;
        }
        place(codes, p.w->k, count, to + row * kCodes);
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
        case Blocks::both: break;
    }
    return tile_with<Blocks::both>(nibbles, rows);
}

// What a tile fetches for those after it.
struct Ahead {
    const void* at;
    int64_t lines;  // for each chunk
};

void multiply(const Work& p, int64_t tile, int64_t panel, Ahead ahead) {
    int64_t from = p.row_of_tile(tile), count = p.row_of_tile(tile + 1) - from;
    int64_t scales = panel * p.w->blocks() * kPanel, column = panel * kPanel;
    bool direct = p.out.dtype == Dtype::fp32 && column + kPanel <= p.w->n;
    alignas(64) float buffer[12 * kPanel];
    float* y = direct ? static_cast<float*>(p.out.y) + (p.first + from) * p.w->n + column : buffer;
    Tile t{p.w->codes + panel * p.w->chunks() * p.w->chunk_bytes(),
           p.w->scales + scales,
           p.w->zeros ? p.w->zeros + scales : nullptr,
           p.codes + from * p.row_codes(),
           p.starts + from * p.blocks,
           p.x_scales + from * p.x_blocks,
           p.x_blocks,
           p.w->chunks(),
           p.block_chunks,
           p.blocks,
           p.weight_every,
           p.x_every,
           p.bias + column,
           y,
           direct ? p.w->n : kPanel,
           static_cast<const char*>(ahead.at),
           ahead.lines};
    tile_for(p.kind, p.w->nibbles, count)(t);
    if (!direct) store_part(p, buffer, p.first + from, count, panel);
}

// The part of a later tile's x that one of the panels before it fetches.
Ahead x_ahead(const Work& p, int64_t tile, int64_t panel) {
    if (tile >= p.tiles) return {};
    int64_t row = p.w->k * dtype_bytes(p.in.dtype), first = p.row_of_tile(tile);
    int64_t size = (p.row_of_tile(tile + 1) - first) * row;
    int64_t lines = ceil_div(size, 64 * p.w->panels() * p.w->chunks());
    int64_t at = panel * lines * p.w->chunks() * 64;
    if (at >= size) return {};
    return {static_cast<const char*>(p.in.x) + (p.first + first) * row + at, lines};
}

// The part of the next panel that one of the tiles before it fetches. One to three rows read the
// memory as fast as it goes by themselves.
Ahead panel_ahead(const Work& p, int64_t panel, int64_t tile, int64_t tiles) {
    int64_t lines = ceil_div(p.w->chunk_bytes(), 64 * tiles);
    int64_t at = tile * lines * p.w->chunks() * 64, size = p.w->chunks() * p.w->chunk_bytes();
    if (p.rows <= 3 || at >= size) return {};
    return {p.w->codes + (panel + 1) * size + at, lines};
}

// A weight that stays in L2: each tile of x is quantized and multiplied while it is in L1.
void run_tiles(const Work& p, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FullPrecision guard;
        RowBuffers buffers(p);
#pragma omp for schedule(dynamic)
        for (int64_t tile = 0; tile < p.tiles; ++tile) {
            prepare_tile(p, tile, buffers);
            for (int64_t panel = 0; panel < p.w->panels(); ++panel)
                multiply(p, tile, panel, x_ahead(p, tile + threads, panel));
        }
    }
}

// Any other: first all rows are quantized, then tiles times panels are shared out so that the tiles
// of an item stay in L2 while its panels pass by.
void run_items(const Work& p, int threads) {
    int64_t tiles = larger(1, kResident / larger(1, p.tile_rows * p.row_codes()));
    int64_t groups = ceil_div(p.tiles, tiles);
    int64_t panels = larger(1, smaller(8, p.w->panels() * groups / (threads * 4)));
    int64_t strips = ceil_div(p.w->panels(), panels);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FullPrecision guard;
        {
            RowBuffers buffers(p);
#pragma omp for schedule(static)
            for (int64_t tile = 0; tile < p.tiles; ++tile) prepare_tile(p, tile, buffers);
        }
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < groups * strips; ++item) {
            int64_t group = item / strips, strip = item % strips;
            int64_t last = smaller(p.w->panels(), (strip + 1) * panels);
            int64_t begin = group * tiles, end = smaller(p.tiles, begin + tiles);
            for (int64_t panel = strip * panels; panel < last; ++panel)
                for (int64_t t = begin; t < end; ++t) {
                    bool more = panel + 1 < last;
                    Ahead next = more ? panel_ahead(p, panel, t - begin, end - begin) : Ahead{};
                    multiply(p, t, panel, next);
                }
        }
    }
}

// The step of an x that has one, chosen first if none was given.
float step_of_all(Work& p, float* stored, int threads) {
    int64_t size = p.in.rows * p.w->k;
    Layout all{{1, 1, size, 1, 1, size}, {1, 1, 0, 1, 1, 1}};
    if (!p.in.scale) {
        QParams chosen{stored, nullptr, nullptr};
        primitives().choose(*p.in.spec, all, p.in.x, p.in.dtype, chosen, threads);
        p.in.scale = stored;
    }
    float step;
    primitives().steps(*p.in.spec, all, {const_cast<void*>(p.in.scale), nullptr, nullptr}, &step);
    return step;
}

int64_t aligned(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

void integers(const IntegerWeight& w, const IntegerInput& in, const Output& out, int threads) {
    if (in.rows == 0 || w.n == 0) return;
    Work p = plan_of(w, in, out);
    float stored;
    if (in.block == 0) p.x_step = step_of_all(p, &stored, threads);
    bool small = w.panels() * w.chunks() * w.chunk_bytes() <= kSmallWeight;
    int64_t codes = p.row_codes() * sizeof(Code);
    int64_t most = smaller(in.rows, larger(kScratch / codes / 96, 1) * 96);
    int64_t sizes[4] = {aligned(most * codes + 64), aligned(most * p.x_blocks * 4),
                        aligned(most * p.blocks * 4), w.panels() * kPanel * 4};
    char* at = linear_scratch().of(sizes[0] + sizes[1] + sizes[2] + sizes[3]);
    p.codes = reinterpret_cast<Code*>(at);
    p.x_scales = reinterpret_cast<float*>(at += sizes[0]);
    p.starts = reinterpret_cast<int32_t*>(at += sizes[1]);
    float* bias = reinterpret_cast<float*>(at += sizes[2]);
    memset(bias, 0, sizes[3]);
    if (out.bias) memcpy(bias, out.bias, w.n * 4);
    p.bias = bias;
    for (p.first = 0; p.first < in.rows; p.first += most) {
        p.rows = smaller(most, in.rows - p.first);
        p.tiles = ceil_div(p.rows, p.tile_rows);
        small && p.tiles >= 4 * threads ? run_tiles(p, threads) : run_items(p, threads);
    }
}

}  // namespace blockscale::BLOCKSCALE_ISA
