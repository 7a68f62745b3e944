// needs: bits/wide
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = wide_product(a.x, b.x);
    return vec2(low.x, low.y + a.x * b.y + a.y * b.x);
}
