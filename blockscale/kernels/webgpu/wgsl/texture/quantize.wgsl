// Texels of numbers -> texels of codes, with a scale that is given.
// needs: texture/source/{source}, texture/result/{texel}, texture/each, code/{how}, random/{random}
fn result_of(x: u32, s: Step, word: u32) -> u32 {
    return code_of(x, s, word);
}
