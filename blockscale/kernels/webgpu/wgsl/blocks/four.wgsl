// Which blocks four neighbours belong to, and the step of one.
// needs: blocks/{blocks}, given/step
fn blocks_of_four(i: u32) -> vec4<u32> {
    let last = sizes.first + sizes.bound - 1u;
    let at = sizes.first + i;
    return vec4(block_of(at), block_of(min(at + 1u, last)), block_of(min(at + 2u, last)),
                block_of(min(at + 3u, last)));
}
