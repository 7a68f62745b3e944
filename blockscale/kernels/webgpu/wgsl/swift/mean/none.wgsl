// Scales that are not chosen from means.
// needs: swift/find/{swift_find}, statistics/sum
fn with_sizes(sum: Sum, x: vec4<u32>, found: Keys, turn: u32) -> Sum {
    return sum;
}

fn keep_mean(sum: Sum, found: Keys, lane: u32) {}
