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
    return Quad(weights_in(block, values_of(codes_of(n, quad))), block.doubt);
}
