// The right factor as floats. RIGHT_STORAGE: as in bits/storage.
// needs: bits/storage, matmul/quad
@group(0) @binding(w) var<storage, read> w: array<u32>;

// Of output n, column k: the bits of a float32.
fn right_of(batch: u32, n: u32, k: u32) -> u32 {
    let place = sizes.right_start + batch * sizes.right_batch + n * sizes.right_row
        + k * sizes.right_column;
    if (RIGHT_STORAGE == 0u) {
        return w[place];
    }
    return widened(w[place / 2u] >> (place % 2u * 16u) & 0xffffu, RIGHT_STORAGE);
}

fn prepare_right(lane: u32) {}

// Four neighbours along k, and whether a product with them may be doubted.
fn right_quad(batch: u32, n: u32, quad: u32) -> Quad {
    let k = quad * 4u;
    var bits = vec4<u32>();
    for (var c = 0u; c < min(sizes.inner - k, 4u); c++) {
        bits[c] = right_of(batch, n, k + c);
    }
    let doubt = any((bits & vec4(0x7fffffffu)) > vec4(VALUE_LIMIT));
    return Quad(bitcast<vec4<f32>>(bits), doubt);
}
