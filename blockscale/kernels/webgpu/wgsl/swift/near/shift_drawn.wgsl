// As swift/near/shift, of numbers that are rounded up or down at random: what is too small for the
// device is the least there is above 0.
// needs: hardware/{hardware}, step/step, swift/tie/none
fn near4(x: vec4<u32>, s: Step) -> vec4<u32> {
    let near = four_products(x, vec4(0x7f000000u - s.bits)) & vec4(0x7fffffffu);
    return max(near, min(x << vec4(1u), vec4(1u))) | (x & vec4(0x80000000u));
}
