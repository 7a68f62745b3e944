// The right factor as codes: a weight [n, k].
// needs: matmul/quad, matmul/block, matmul/decode/{decode}
fn right_of(batch: u32, n: u32, k: u32) -> u32 {
    return weight_of(n, k);
}

fn prepare_right(lane: u32) {
    prepare_decode(lane);
}

// Four neighbours along k, all of one block.
fn right_quad(batch: u32, n: u32, quad: u32) -> Quad {
    let block = prepared_block(block_of(n, quad * 4u));
    let patterns = codes_of(n, quad);
    let found = values_of(patterns, block.zero);
    let doubt = block.doubt | any_reserved(four_bytes(patterns));
    if (HAS_OFFSET) {
        return Quad(shifted_weights(found, block.step, block.offset), doubt);
    }
    return Quad(found * block.step, doubt);
}
