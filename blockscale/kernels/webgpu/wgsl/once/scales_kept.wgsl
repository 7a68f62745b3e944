// Scales of a workgroup's blocks, as stored, which together fill whole words.
// needs: store/scale, store/scale_{stored_scale}, store/zero_{stored_zero}, store/zeros_{store_zeros}, store/offset_{stored_offset}, store/offsets_{store_offsets}
var<workgroup> scale_of_teams: array<u32, TEAMS>;
var<workgroup> zero_of_teams: array<u32, TEAMS>;
var<workgroup> offset_of_teams: array<u32, TEAMS>;

fn keep(team: u32, chosen: Chosen) {
    scale_of_teams[team] = stored_scale(chosen.scale);
    zero_of_teams[team] = stored_zero(chosen.zero);
    offset_of_teams[team] = stored_offset(chosen.offset);
}

// After all teams have kept theirs. lane: which word; first: the workgroup's first block
fn keep_words(lane: u32, first: u32, count: u32) {
    let scales_a_word = 32u / SCALE_BITS;
    if (lane * scales_a_word < count) {
        var word = 0u;
        for (var i = 0u; i < scales_a_word && lane * scales_a_word + i < count; i++) {
            word |= scale_of_teams[lane * scales_a_word + i] << (i * SCALE_BITS);
        }
        put_scales(first / scales_a_word + lane, word);
    }
    let zeros_a_word = 32u / ZERO_BITS;
    if (lane * zeros_a_word < count) {
        var word = 0u;
        for (var i = 0u; i < zeros_a_word && lane * zeros_a_word + i < count; i++) {
            word |= zero_of_teams[lane * zeros_a_word + i] << (i * ZERO_BITS);
        }
        put_zeros(first / zeros_a_word + lane, word);
    }
    let offsets_a_word = 32u / OFFSET_BITS;
    if (lane * offsets_a_word < count) {
        var word = 0u;
        for (var i = 0u; i < offsets_a_word && lane * offsets_a_word + i < count; i++) {
            word |= offset_of_teams[lane * offsets_a_word + i] << (i * OFFSET_BITS);
        }
        put_offsets(first / offsets_a_word + lane, word);
    }
}
