// Codes that are never found quickly.
// needs: quick/quick
fn quick_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Quick {
    return Quick(vec4(0u), false);
}
