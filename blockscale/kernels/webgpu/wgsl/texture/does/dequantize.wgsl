// Codes -> their values.
// needs: float/{dtype}, code/{how}
fn results_of(codes: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    let found = four_values(codes, s);
    return vec4(narrow(found.x), narrow(found.y), narrow(found.z), narrow(found.w));
}

fn result_of(code: u32, s: Step, word: u32) -> u32 {
    return narrow(value_of(code, s));
}
