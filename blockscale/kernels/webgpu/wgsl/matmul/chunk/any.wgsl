// Rows that begin anywhere, codes of any width up to eight bits: four are read when they are needed.
// needs: matmul/codes
const CHUNK: u32 = 8u; // quads

fn chunk_of(n: u32, quad: u32) -> vec4<u32> {
    return vec4<u32>();
}

fn chunk_codes(chunk: vec4<u32>, n: u32, quad: u32, i: u32) -> vec4<u32> {
    return codes_of(n, quad + i);
}
