// SPDX-License-Identifier: BSD-3-Clause
// The fast path (kernels/fast_path): numbers scaled by the step's reciprocal (`scaled/…`), coded four
// at a time, and ties, which exact arithmetic breaks (`tie_break/…`).

//# binary
// Signs: 1 is +1, which zeros of both signs are, too.
// needs: hardware/{hardware}, fast_path_code/packed, bits/parts
fn prepare_code(lane: u32) {}

struct Coded {
    codes: vec4<u32>,
}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    return Coded(vec4<u32>(near <= vec4(SIGN)));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    return packed4(c.codes);
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    return vec4(s.bits) | ((vec4(1u) - c.codes) << vec4(31u));
}

//# codebook
// Tables of at most 16 values. Numbers fall into cells, 1 / CELLS_A_ONE wide, of which none has more
// than one threshold: a cell's codes are that of numbers up to it and that of larger ones. Numbers
// beyond the first cell or the last are theirs: there are some where scales were rounded.
// needs: hardware/{hardware}, fast_path_code/packed, bits/parts
@group(0) @binding(cell_table) var<storage, read> cell_table: array<u32>;
var<workgroup> thresholds_of_cells: array<u32, CELLS>;
var<workgroup> codes_of_cells: array<u32, CELLS>;
var<workgroup> values_of_codes: array<u32, 16>;

fn prepare_code(lane: u32) {
    for (var i = lane; i < CELLS; i += GROUP) {
        thresholds_of_cells[i] = cell_table[i];
        codes_of_cells[i] = cell_table[CELLS + i];
    }
    if (lane < 16u) {
        values_of_codes[lane] = cell_table[2u * CELLS + lane];
    }
    workgroupBarrier();
}

fn cells_of(near: vec4<u32>) -> vec4<u32> {
    let places = four_sums(four_products(near, vec4(CELLS_A_ONE)), vec4(0x4b400000u));
    let cells = bitcast<vec4<i32>>(places - vec4(0x4b400000u - CELL_OF_ZERO));
    return bitcast<vec4<u32>>(clamp(cells, vec4(0), vec4(i32(CELLS) - 1)));
}

fn thresholds_at(cells: vec4<u32>) -> vec4<u32> {
    return vec4(thresholds_of_cells[cells.x], thresholds_of_cells[cells.y],
                thresholds_of_cells[cells.z], thresholds_of_cells[cells.w]);
}

struct Coded {
    codes: vec4<u32>,
}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let cells = cells_of(near);
    let above = bitcast<vec4<f32>>(near) > bitcast<vec4<f32>>(thresholds_at(cells));
    let both = vec4(codes_of_cells[cells.x], codes_of_cells[cells.y], codes_of_cells[cells.z],
                    codes_of_cells[cells.w]);
    return Coded(select(both & vec4(15u), both >> vec4(4u), above));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    return packed4(c.codes);
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    let found = vec4(values_of_codes[c.codes.x], values_of_codes[c.codes.y],
                     values_of_codes[c.codes.z], values_of_codes[c.codes.w]);
    return four_products(found, vec4(s.bits));
}

//# integer
// Integers, to nearest, ties to even: beside 1.5 * 2^23 the neighbours of a number are whole.
// needs: hardware/{hardware}, fast_path_code/packed, zero_point/{zero}, bits/parts
const WHOLE: u32 = 0x4b400000u;
const HALF_RANGE: u32 = select(0u, 1u << (BITS - 1u), SIGNED);

struct Coded {
    sums: vec4<u32>,
    magic: u32, // WHOLE, which compilers that take sums apart do not see
}

fn prepare_code(lane: u32) {}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let low = bitcast<u32>(f32(LOW - zero_of(s)));
    let high = bitcast<u32>(f32(HIGH - zero_of(s)));
    let bounded = four_least(four_most(near, vec4(low)), vec4(high));
    let magic = min(WHOLE, s.bits | INFINITY);
    return Coded(four_sums(bounded, vec4(magic)), magic);
}

fn codes_of(c: Coded, s: Step) -> u32 {
    let more = HALF_RANGE - WHOLE + u32(zero_of(s)); // so that each is 0 … 2^BITS - 1
    return (packed4(c.sums) + more * EACH_BY_ONE) ^ (HALF_RANGE * EACH_BY_ONE);
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    return four_products(four_sums(c.sums, vec4(c.magic | SIGN)), vec4(s.bits));
}

//# minifloat
// Minifloats, to nearest, ties to even: beside 2^(23 - MBITS) times its binade the neighbours of a
// number are one code apart (code/approximate/minifloat).
// needs: hardware/{hardware}, fast_path_code/packed, bits/parts
struct Coded {
    near: vec4<u32>,
    magic: vec4<u32>,
    sums: vec4<u32>,
}

fn prepare_code(lane: u32) {}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let bounded = four_least(four_sizes(near), vec4(LARGEST_VALUE));
    let binade = max(bounded & vec4(INFINITY), vec4(LEAST << 23u));
    let magic = binade + vec4((23u - MBITS) << 23u);
    return Coded(near, magic, four_sums(bounded, magic));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    let sizes_of_all = (c.sums - c.magic) + (c.magic >> vec4(23u - MBITS));
    let each = (LEAST + 23u - MBITS) << MBITS; // too much
    let above = c.near >> vec4(32u - BITS);
    let signs = EACH_BY_ONE << (BITS - 1u);
    let negative = (above.x | (above.y << BITS) | (above.z << (2u * BITS)) | (above.w << (3u * BITS)));
    return (packed4(sizes_of_all) - each * EACH_BY_ONE) | (negative & signs);
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    let sizes_of_all = four_sums(c.sums, c.magic | vec4(SIGN));
    return four_products(sizes_of_all | (c.near & vec4(SIGN)), vec4(s.bits));
}

//# packed
// Codes of BITS beside one another: sums of what does not overlap, so that what all of them have
// too much is subtracted at once.
const EACH_BY_ONE: u32 = 1u + (1u << BITS) + (1u << (2u * BITS)) + (1u << (3u * BITS));

fn packed4(x: vec4<u32>) -> u32 {
    return x.x + (x.y << BITS) + (x.z << (2u * BITS)) + (x.w << (3u * BITS));
}

//# stochastic_integer
// Integers, stochastically, in steps that are powers of two: of |y| in units of 2^-24, rounded up,
// what is left above a whole number is larger than u's 24 bits, or not. Exact: |y| is at most 2^7,
// and what is flushed on the way is a unit.
// needs: hardware/{hardware}, fast_path_code/packed, bits/parts
const ABOVE_ALL: u32 = 0x1000000u; // 2^24

fn prepare_code(lane: u32) {}

struct Coded {
    steps: vec4<i32>,
}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let size = four_least(four_sizes(near), vec4((126u + BITS) << 23u)); // 2^(BITS - 1)
    let units = ceil(bitcast<vec4<f32>>(four_products(size, vec4(0x4b800000u))));
    let some = max(vec4<u32>(units), min(near << vec4(1u), vec4(1u)));
    let steps = vec4<i32>((some + (vec4(ABOVE_ALL - 1u) - words)) >> vec4(24u));
    let negative = near >= vec4(SIGN);
    return Coded(select(min(steps, vec4(HIGH)), -min(steps, vec4(-LOW)), negative));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    return packed4(vec4<u32>(c.steps) & vec4((1u << BITS) - 1u));
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    return four_products(bitcast<vec4<u32>>(vec4<f32>(c.steps)), vec4(s.bits));
}

//# stochastic_minifloat
// Minifloats, stochastically, in steps that are powers of two: as stochastic_integer has it, in units
// of 2^-24 of what codes of a binade are apart.
// needs: hardware/{hardware}, fast_path_code/packed, bits/parts
const ABOVE_ALL: u32 = 0x1000000u; // 2^24

fn prepare_code(lane: u32) {}

struct Coded {
    steps: vec4<u32>, // of what codes are apart
    binade: vec4<u32>,
    signs: vec4<u32>,
}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let size = four_least(four_sizes(near), vec4(LARGEST_VALUE));
    let binade = max(size & vec4(INFINITY), vec4(LEAST << 23u));
    let factor = vec4((278u + MBITS) << 23u) - binade; // 2^(24 + MBITS) of it is one
    let units = ceil(bitcast<vec4<f32>>(four_products(size, factor)));
    let some = max(vec4<u32>(units), min(near << vec4(1u), vec4(1u)));
    let steps = (some + (vec4(ABOVE_ALL - 1u) - words)) >> vec4(24u);
    return Coded(steps, binade, near & vec4(SIGN));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    let sizes_of_all = (c.binade >> vec4(23u - MBITS)) + c.steps - vec4(LEAST << MBITS);
    return packed4(sizes_of_all | (c.signs >> vec4(32u - BITS)));
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    let apart = c.binade - vec4(MBITS << 23u);
    let sizes_of_all = four_products(bitcast<vec4<u32>>(vec4<f32>(c.steps)), apart);
    return four_products(sizes_of_all | c.signs, vec4(s.bits));
}

//# scaled/quotient
// Numbers in steps that are floats: products with an inverse that is at most 2.5 ulps off.
// needs: hardware/{hardware}, step/step, fast_path_code/tie_break/{tie_break}
fn scaled4(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(s.inverse));
}

//# scaled/shift
// Numbers in steps that are powers of two: exact, or so small that they round to 0.
// needs: hardware/{hardware}, step/step, fast_path_code/tie_break/none
fn scaled4(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(0x7f000000u - s.bits));
}

//# scaled/shift_drawn
// As scaled/shift, of numbers that are rounded up or down at random: what is too small for the
// device is the least there is above 0.
// needs: hardware/{hardware}, step/step, fast_path_code/tie_break/none
fn scaled4(x: vec4<u32>, s: Step) -> vec4<u32> {
    let near = four_products(x, vec4(0x7f000000u - s.bits)) & vec4(0x7fffffffu);
    return max(near, min(x << vec4(1u), vec4(1u))) | (x & vec4(0x80000000u));
}

//# tie_break/binary
// Where a number of steps is 0, the sign says nothing of what was flushed to it.
// needs: hardware/{hardware}, step/step, arithmetic/{arithmetic}/divide
fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    return smallest_of_four(near << vec4(1u)) == 0u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    var found = near;
    for (var i = 0u; i < 4u; i++) {
        if ((near[i] << 1u) == 0u && (x[i] << 1u) != 0u) {
            found[i] = divide(x[i], s.bits);
        }
    }
    return found;
}

fn settles(step: u32) -> bool {
    return true;
}

//# tie_break/codebook
// Thresholds of a codebook, of which a number is sure from seven units of its last place on: six of
// them are as many as a product is off at most.
// needs: fast_path_code/codebook, bits/corrected, arithmetic/{arithmetic}/reciprocal
fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    return smallest_of_four(near - thresholds_at(cells_of(near)) + vec4(8u)) <= 16u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    let inverse = reciprocal(s.bits);
    return vec4(one_quotient(x.x, s, inverse), one_quotient(x.y, s, inverse),
                one_quotient(x.z, s, inverse), one_quotient(x.w, s, inverse));
}

// fl(x / step), but for numbers of which that is far below a half.
fn one_quotient(x: u32, s: Step, inverse: u32) -> u32 {
    let near = product(x, inverse);
    return select(near, corrected(x, near, s.bits), is_correctable(x, near));
}

fn settles(step: u32) -> bool {
    return true;
}

//# tie_break/integer
// Ties between integers. What 2.5 ulps are two units of beside QUICK_CENTER at most.
// needs: hardware/{hardware}, code/approximate/integer, fast_path_code/tie_break/settled
fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    let rest = four_sums(near, vec4(QUICK_TIE)) & vec4((1u << QUICK_FRACTION) - 1u);
    return smallest_of_four(rest) <= 4u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    let magic = min(0x4b400000u, s.bits | INFINITY); // as in fast_path_code/integer
    let whole = four_sums(four_sums(near, vec4(magic)), vec4(SIGN | magic));
    let up = four_sums(near, whole ^ vec4(SIGN)) < vec4(SIGN);
    let ties = four_sums(whole, select(vec4(0xbf000000u), vec4(0x3f000000u), up));
    return settled(x, near, ties, vec4(0x3e800000u), s);
}

// Whether what settles a tie is normal.
fn settles(step: u32) -> bool {
    return true;
}

//# tie_break/minifloat
// Ties between minifloats. 2.5 ulps of the inverse and half of the product are three units at most
// beside twice the binade (code/approximate/minifloat), the sum's rounding half of one; of numbers
// below the first binade less.
// needs: hardware/{hardware}, code/approximate/minifloat, fast_path_code/tie_break/settled
const WIDE_TIE: u32 = QUICK_TIE + 2u;

fn binade_of(size: vec4<u32>) -> vec4<u32> {
    return max(size & vec4(INFINITY), vec4(LEAST << 23u));
}

fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    let bounded = four_least(four_sizes(near), vec4(LARGEST_VALUE));
    let beside = four_sums(bounded, four_products(binade_of(bounded), vec4(WIDE_TIE)));
    return smallest_of_four(beside & vec4((1u << QUICK_FRACTION) - 1u)) <= 8u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    let size = near & vec4(MAGNITUDE);
    let binade = binade_of(size);
    let magic = binade + vec4((23u - MBITS) << 23u);
    let whole = four_sums(four_sums(size, magic), magic | vec4(SIGN));
    let up = four_sums(size, whole ^ vec4(SIGN)) < vec4(SIGN);
    let half = binade - vec4((MBITS + 1u) << 23u); // of what codes are apart
    let ties = four_sums(whole, select(half | vec4(SIGN), half, up));
    let sign = near & vec4(SIGN);
    return settled(x, near, ties | sign, half - vec4(0x800000u), s);
}

// Whether what settles a tie is normal: the least one is 2^-10 or more, of steps of 2^-64 or more.
fn settles(step: u32) -> bool {
    return step >= 0x1f800000u;
}

//# tie_break/none
// Exact numbers of steps: ties are what they seem.
// needs: step/step
fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    return false;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    return near;
}

//# tie_break/settled
// Which side of a tie fl(x / step) is on, or whether it is the tie, from x - tie * step. That is
// exact: a tie has at most 12 bits, so have both parts of the step, and x is near the first product.
// needs: hardware/{hardware}, step/step, bits/parts
// ties: the nearest one of each; beside: a number that added to a tie stays within what rounds alike
fn settled(x: vec4<u32>, near: vec4<u32>, ties: vec4<u32>, beside: vec4<u32>, s: Step) -> vec4<u32> {
    let first = s.bits & 0xfffff000u;
    let second = sum(s.bits, first | SIGN);
    let minus = ties ^ vec4(SIGN);
    let rest = four_sums(four_sums(x, four_products(minus, vec4(first))),
                         four_products(minus, vec4(second)));
    // Half a unit of the tie's last place, in numbers. Below a power of two it is half of that, but
    // such ties are those beside 0, and round to what the numbers below them round to.
    let unit = (ties & vec4(INFINITY)) - vec4(24u << 23u);
    let is_tie = (rest & vec4(MAGNITUDE)) <= four_products(unit, vec4(s.bits));
    let moved = four_sums(ties, beside | (rest & vec4(SIGN)));
    let is_near = four_sizes(four_sums(near, minus)) <= (beside & vec4(MAGNITUDE));
    return select(near, select(moved, ties, is_tie), is_near);
}
