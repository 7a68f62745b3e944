// The device's own floats, where it rounds them as IEEE 754 says (gpu/probe.py): in place of bits/*.
// needs: bits/parts
fn told(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits, NAN, is_nan(bits)); // devices differ in which NaN
}
