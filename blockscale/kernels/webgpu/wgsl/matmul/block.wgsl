// What the quick way takes of a block, as floats; doubt: one is too large for it, or no number.
// needs: matmul/codes
struct Block { step: f32, zero: f32, offset: f32, doubt: bool }

fn prepared_block(block: u32) -> Block {
    let step = step_at(block);
    var zero = f32(step.zero);
    var doubt = u32(step.zero + i32(ZERO_LIMIT)) > 2u * ZERO_LIMIT;
    if (FLOAT_ZERO) {
        zero = bitcast<f32>(step.zero);
        doubt = (u32(step.zero) & 0x7fffffffu) > bitcast<u32>(f32(ZERO_LIMIT));
    }
    doubt |= (step.bits & 0x7fffffffu) > STEP_LIMIT || (step.offset & 0x7fffffffu) > VALUE_LIMIT;
    return Block(bitcast<f32>(step.bits), zero, bitcast<f32>(step.offset), doubt);
}

// The weights that four values stand for. A product that feeds a sum is not rounded by itself on
// most devices, unless an integer operation stands between whose result nobody can foresee.
fn weights_in(block: Block, values: vec4<f32>) -> vec4<f32> {
    let products = bitcast<vec4<u32>>((values - block.zero) * block.step);
    if (!HAS_OFFSET) {
        return bitcast<vec4<f32>>(products);
    }
    let nothing = u32(arrayLength(&codes) == 0u);
    return bitcast<vec4<f32>>(products ^ vec4(nothing)) + block.offset;
}
