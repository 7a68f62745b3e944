// needs: torch/math/whole_order
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, below(a, b));
}
