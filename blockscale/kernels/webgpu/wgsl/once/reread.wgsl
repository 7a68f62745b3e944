// An invocation's numbers, which are too many to be kept: the second reading is from caches.
fn read_first(quad: u32, at: u32) -> vec4<u32> {
    return load4(at);
}

fn read_again(quad: u32, at: u32) -> vec4<u32> {
    return load4(at);
}
