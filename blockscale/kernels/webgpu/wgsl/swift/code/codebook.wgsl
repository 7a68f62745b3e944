// Tables of at most 16 values. Numbers fall into cells, 1 / CELLS_A_ONE wide, of which none has more
// than one threshold: a cell's codes are that of numbers up to it and that of larger ones. Numbers
// beyond the first cell or the last are theirs: there are some where scales were rounded.
// needs: hardware/{hardware}, swift/code/packed, bits/parts
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
