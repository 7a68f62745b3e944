// Rows that begin anywhere, codes of any width up to eight bits: four of each of four rows at once.
// needs: matmul/chunk/sums, matmul/decode/{decode}, matmul/codes
const CHUNK: u32 = 8u; // quads

fn take_chunk(n: vec4<u32>, first: u32, place: u32, sums: ptr<function, Sums>) -> bool {
    var doubt = false;
    for (var piece = 0u; piece < CHUNK; piece += PIECE) {
        let blocks = blocks_of(n, first + piece);
        doubt |= blocks.doubt;
        var part = Sums();
        for (var q = piece; q < piece + PIECE; q++) {
            let c0 = codes_of(n.x, first + q);
            let c1 = codes_of(n.y, first + q);
            let c2 = codes_of(n.z, first + q);
            let c3 = codes_of(n.w, first + q);
            doubt |= any_reserved(four_bytes(c0)) | any_reserved(four_bytes(c1)) | any_reserved(four_bytes(c2))
                | any_reserved(four_bytes(c3));
            let values = mat4x4(
                values_of(c0, blocks.zeros.x), values_of(c1, blocks.zeros.y),
                values_of(c2, blocks.zeros.z), values_of(c3, blocks.zeros.w),
            );
            part = add_quad(place + q * ACROSS, in_blocks(blocks, values), part);
        }
        finish(part, blocks, sums);
    }
    return doubt;
}
