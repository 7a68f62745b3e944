fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return a | b;
}
