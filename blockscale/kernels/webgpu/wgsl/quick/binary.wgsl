// Signs. Not of zeros, which may be flushed numbers.
// needs: quick/quick
fn quick_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Quick {
    let sure = s.ordinary && finite_together(near) && smallest_of_four(near << vec4(1u)) > 0u;
    return Quick(vec4(1u) - (near >> vec4(31u)), sure);
}
