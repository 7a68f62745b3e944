// Four codes from i on, which counts elements of a piece of a tensor, where rows end within bytes.
// needs: load/codes_in_rows
fn codes4(i: u32) -> vec4<u32> {
    let at = sizes.first + i;
    return vec4(code_at(at), code_at(at + 1u), code_at(at + 2u), code_at(at + 3u));
}
