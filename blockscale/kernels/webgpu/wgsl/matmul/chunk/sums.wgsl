// Sums of up to four rows of x with four outputs each, and what is added to them at a time.
// needs: matmul/block
struct Sums { r0: vec4<f32>, r1: vec4<f32>, r2: vec4<f32>, r3: vec4<f32> }

// A block of each of four outputs.
struct Blocks { steps: vec4<f32>, zeros: vec4<f32>, offsets: vec4<f32>, doubt: bool }

fn blocks_of(n: vec4<u32>, quad: u32) -> Blocks {
    let k = min(quad * 4u, sizes.inner - 1u);
    let b0 = prepared_block(block_of(n.x, k));
    let b1 = prepared_block(block_of(n.y, k));
    let b2 = prepared_block(block_of(n.z, k));
    let b3 = prepared_block(block_of(n.w, k));
    return Blocks(
        vec4(b0.step, b1.step, b2.step, b3.step), vec4(b0.zero, b1.zero, b2.zero, b3.zero),
        vec4(b0.offset, b1.offset, b2.offset, b3.offset),
        b0.doubt | b1.doubt | b2.doubt | b3.doubt,
    );
}

// What x is multiplied by, a column for each output. Steps follow once a block (numerics.md, 7),
// but where an offset has to be added to each weight.
fn in_blocks(blocks: Blocks, values: mat4x4<f32>) -> mat4x4<f32> {
    if (!HAS_OFFSET) {
        return values;
    }
    return mat4x4(
        shifted_weights(values[0], blocks.steps.x, blocks.offsets.x),
        shifted_weights(values[1], blocks.steps.y, blocks.offsets.y),
        shifted_weights(values[2], blocks.steps.z, blocks.offsets.z),
        shifted_weights(values[3], blocks.steps.w, blocks.offsets.w),
    );
}

fn finish(part: Sums, blocks: Blocks, sums: ptr<function, Sums>) {
    let factors = select(blocks.steps, vec4(1.0), HAS_OFFSET);
    (*sums).r0 = fma(part.r0, factors, (*sums).r0);
    if (ROWS > 1u) {
        (*sums).r1 = fma(part.r1, factors, (*sums).r1);
    }
    if (ROWS > 2u) {
        (*sums).r2 = fma(part.r2, factors, (*sums).r2);
        (*sums).r3 = fma(part.r3, factors, (*sums).r3);
    }
}

// Four columns of x, staged at a place for the first row, times those of the weight.
fn add_quad(place: u32, w: mat4x4<f32>, part: Sums) -> Sums {
    var sums = part;
    sums.r0 = dots_of(staged[place], w, part.r0);
    if (ROWS > 1u) {
        sums.r1 = dots_of(staged[place + ROW_STRIDE], w, part.r1);
    }
    if (ROWS > 2u) {
        sums.r2 = dots_of(staged[place + 2u * ROW_STRIDE], w, part.r2);
        sums.r3 = dots_of(staged[place + 3u * ROW_STRIDE], w, part.r3);
    }
    return sums;
}

fn dots_of(x: vec4<f32>, w: mat4x4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return vec4(dot_of(x, w[0], sum.x), dot_of(x, w[1], sum.y), dot_of(x, w[2], sum.z),
                dot_of(x, w[3], sum.w));
}

fn dot_of(x: vec4<f32>, w: vec4<f32>, sum: f32) -> f32 {
    return fma(x.x, w.x, fma(x.y, w.y, fma(x.z, w.z, fma(x.w, w.w, sum))));
}
