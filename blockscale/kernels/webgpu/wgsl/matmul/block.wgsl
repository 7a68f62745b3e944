// What the quick way takes of a block, as floats; doubt: one is too large for it, or no number.
// needs: matmul/codes, matmul/step/{quick_step}
struct Block { step: f32, zero: f32, offset: f32, doubt: bool }

fn prepared_block(block: u32) -> Block {
    let step = quick_step(block);
    var zero = f32(step.zero);
    var doubt = u32(step.zero + i32(ZERO_LIMIT)) > 2u * ZERO_LIMIT;
    if (FLOAT_ZERO) {
        zero = bitcast<f32>(step.zero);
        doubt = (u32(step.zero) & 0x7fffffffu) > bitcast<u32>(f32(ZERO_LIMIT));
    }
    doubt |= (step.bits & 0x7fffffffu) > STEP_LIMIT || (step.offset & 0x7fffffffu) > VALUE_LIMIT;
    let factor = bitcast<f32>(step.bits) * bitcast<f32>(VALUE_FACTOR);
    return Block(factor, zero, bitcast<f32>(step.offset), doubt);
}

// The weights that values stand for, in a block with an offset. A product that feeds a sum is not
// rounded by itself on most devices, unless an integer operation stands between whose result nobody
// can foresee.
fn shifted_weights(values: vec4<f32>, step: f32, offset: f32) -> vec4<f32> {
    let nothing = u32(arrayLength(&codes) == 0u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(values * step) ^ vec4(nothing)) + offset;
}
