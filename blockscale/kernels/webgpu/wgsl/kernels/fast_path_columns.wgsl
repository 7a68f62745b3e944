// SPDX-License-Identifier: BSD-3-Clause
// Blocks that are ROWS * PARTS numbers of a column of a matrix. Neighbours take COLUMNS units of 16
// bytes of a row and ROWS rows; PARTS of them share a unit's columns, and all REACH of a team have
// asked for their numbers before the first is used. Each chooses the scales of some columns, all read
// them. Units with a column that asks for exact arithmetic of integers are left for the end.
// needs: memory/grid, fast_path_memory/load/{load}, fast_path_choose/find/{find}
// needs: fast_path_choose/{fast_choose}, fast_path_code/scaled/{scaled}
// needs: kernels/fast_path_columns/{result}
const PARTS: u32 = REACH / COLUMNS;
const WIDTH: u32 = 4u * FOURS; // columns of a unit
const TEAMS: u32 = GROUP / REACH;

var<workgroup> factors: array<array<u32, WIDTH>, GROUP / PARTS>; // what numbers are multiplied by
var<workgroup> steps: array<array<u32, WIDTH>, GROUP / PARTS>;
var<workgroup> scales_chosen: array<array<u32, WIDTH>, GROUP / PARTS>;
var<workgroup> sure: array<array<u32, WIDTH>, GROUP / PARTS>;

fn factors_of(own: u32, j: u32) -> vec4<u32> {
    return vec4(factors[own][4u * j], factors[own][4u * j + 1u], factors[own][4u * j + 2u],
                factors[own][4u * j + 3u]);
}

fn steps_of(own: u32, j: u32) -> vec4<u32> {
    return vec4(steps[own][4u * j], steps[own][4u * j + 1u], steps[own][4u * j + 2u],
                steps[own][4u * j + 3u]);
}

// A step of which its value alone is asked for.
fn plain(bits: u32) -> Step {
    return Step(bits, 0u, 0, 0u, true);
}

fn settled_columns(x: vec4<u32>, near: vec4<u32>, bits: vec4<u32>) -> vec4<u32> {
    var found = vec4(0u);
    for (var c = 0u; c < 4u; c++) {
        found[c] = settled4(vec4(x[c]), vec4(near[c]), plain(bits[c])).x;
    }
    return found;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let team = group_number(group, groups) * TEAMS + lane / REACH;
    let across = (sizes.units + COLUMNS - 1u) / COLUMNS; // teams beside one another
    let down = team / across;
    let column = (team - down * across) * COLUMNS + lane % COLUMNS;
    let part = lane % REACH / COLUMNS;
    let there = column < sizes.units && down < sizes.down;
    let start = (min(down, sizes.down - 1u) * (ROWS * PARTS) + part * ROWS) * sizes.units
        + min(column, sizes.units - 1u);
    var held: array<vec4<u32>, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        held[r] = x[start + r * sizes.units];
    }
    prepare_code(lane);
    let own = lane / REACH * COLUMNS + lane % COLUMNS; // in the workgroup's arrays
    for (var j = 0u; j < FOURS; j++) {
        var found = vec4(0u);
        for (var r = 0u; r < ROWS; r++) {
            found = max(found, four_of(held[r], j) & vec4(0x7fffffffu));
        }
        for (var side = COLUMNS; side < REACH; side *= 2u) {
            found = max(found, subgroupShuffleXor(found, side));
        }
        for (var c = part; c < 4u; c += PARTS) {
            let s = fast_choice(keys_found(found[c]), 0u);
            factors[own][4u * j + c] = scaled4(vec4(0x3f800000u), s.step).x;
            steps[own][4u * j + c] = s.step.bits;
            scales_chosen[own][4u * j + c] = s.scale;
            sure[own][4u * j + c] = u32(s.sure);
        }
    }
    workgroupBarrier();
    if (!there) {
        return;
    }
    var all_sure = 1u;
    for (var c = 0u; c < WIDTH; c++) {
        all_sure &= sure[own][c];
    }
    let block = sizes.first / (ROWS * PARTS) + (down * sizes.units + column) * WIDTH;
    if (part == 0u) {
        keep_columns(block, own);
    }
    if (all_sure == 0u) {
        take_rare_columns(start, down * (ROWS * PARTS) * sizes.units + column, block, part == 0u);
        return;
    }
    var own_factors: array<vec4<u32>, FOURS>;
    var own_steps: array<vec4<u32>, FOURS>;
    for (var j = 0u; j < FOURS; j++) {
        own_factors[j] = factors_of(own, j);
        own_steps[j] = steps_of(own, j);
    }
    for (var r = 0u; r < ROWS; r++) {
        var near: array<vec4<u32>, FOURS>;
        for (var j = 0u; j < FOURS; j++) {
            near[j] = four_products(four_of(held[r], j), own_factors[j]);
            if (is_near_a_tie(near[j], plain(0u))) {
                near[j] = settled_columns(four_of(held[r], j), near[j], own_steps[j]);
            }
        }
        put_columns(start + r * sizes.units, near[0], near[FOURS - 1u], own_steps[0],
                    own_steps[FOURS - 1u]);
    }
}

//# codes
// Packed codes of units of columns, which fill whole words, and the columns' scales.
// needs: kernels/fast_path_columns/exact, fast_path_code/{family}, stored_params/store/scale
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;
const UNIT_WORDS: u32 = WIDTH * BITS / 32u;

fn keep_columns(first: u32, own: u32) {
    for (var c = 0u; c < WIDTH; c += 32u / SCALE_BITS) {
        var word = 0u;
        for (var i = 0u; i < 32u / SCALE_BITS; i++) {
            word |= scales_chosen[own][c + i] << (i * SCALE_BITS % 32u);
        }
        put_scales((first + c) * SCALE_BITS / 32u, word);
    }
}

fn put_columns(place: u32, low: vec4<u32>, high: vec4<u32>, first_steps: vec4<u32>, last: vec4<u32>) {
    let any = plain(first_steps.x); // not a constant, with which compilers would take sums apart
    let first = codes_of(coded(low, vec4(0u), any), any);
    if (FOURS == 1u) {
        codes[place] = first;
        return;
    }
    let second = codes_of(coded(high, vec4(0u), any), any);
    if (UNIT_WORDS == 1u) {
        codes[place] = first | (second << (4u * BITS % 32u));
    } else {
        codes[2u * place] = first;
        codes[2u * place + 1u] = second;
    }
}

fn take_rare_columns(start: u32, top: u32, block: u32, keeps: bool) {
    for (var c = 0u; c < WIDTH; c++) {
        let chosen = exact_choice(top, c);
        let s = step_of(chosen.scale, chosen.zero, 0u, chosen.offset);
        if (SCALE_BITS == 32u && keeps) { // those of 8 bits are right
            put_scales(block + c, chosen.scale);
        }
        for (var r = 0u; r < ROWS; r++) {
            let place = start + r * sizes.units;
            let code = code_of_one(four_of(x[place], c / 4u)[c % 4u], s, 0u);
            let word = place * UNIT_WORDS + c * BITS / 32u;
            let kept = select(codes[word], 0u, c * BITS % 32u == 0u);
            codes[word] = kept | (code << (c * BITS % 32u));
        }
    }
}

//# exact
// Columns of numbers that ask for exact arithmetic, each number alone.
// needs: fast_path_memory/load/{load}, choose/{rule}, step/{step}, code/{how}
// needs: statistics/{statistic}
// top: the unit of the first row; c: which of its columns
fn exact_choice(top: u32, c: u32) -> Chosen {
    var found = NOTHING;
    for (var r = 0u; r < ROWS * PARTS; r++) {
        found = max(found, keys_of(four_of(x[top + r * sizes.units], c / 4u)[c % 4u]));
    }
    return choose(range_of(found), 0u);
}

//# values
// Values of units of columns. first, last: the steps of their first and their last four.
// needs: kernels/fast_path_columns/exact, fast_path_code/{family}
// needs: fast_path_memory/narrow/{narrow}, memory/float/{dtype}
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn keep_columns(first: u32, own: u32) {}

fn put_columns(place: u32, low: vec4<u32>, high: vec4<u32>, first: vec4<u32>, last: vec4<u32>) {
    let one = plain(0x3f800000u);
    let any = plain(first.x); // not a constant, with which compilers would take sums apart
    var written = values_of_coded(coded(low, vec4(0u), any), one);
    written = four_products(written, first);
    if (FOURS == 2u) {
        let more = values_of_coded(coded(high, vec4(0u), any), one);
        written = narrowed8(written, four_products(more, last));
    }
    values[place] = written;
}

fn take_rare_columns(start: u32, top: u32, block: u32, keeps: bool) {
    for (var c = 0u; c < WIDTH; c++) {
        let chosen = exact_choice(top, c);
        let s = step_of(chosen.scale, chosen.zero, 0u, chosen.offset);
        for (var r = 0u; r < ROWS; r++) {
            let place = start + r * sizes.units;
            let own = four_of(x[place], c / 4u)[c % 4u];
            let value = narrow(value_of(code_of_one(own, s, 0u), s));
            let kept = select(values[place][c / FOURS], 0u, c % FOURS == 0u);
            values[place][c / FOURS] = kept | (value << (c % FOURS * 16u));
        }
    }
}
