// The sum and the largest of what the 64 invocations of a workgroup hold.
// needs: torch/binary/maximum
var<workgroup> held: array<f32, 64>;
var<workgroup> largest_held: array<u32, 64>;

fn sum_of(mine: f32, lane: u32) -> f32 {
    workgroupBarrier(); // the sum before has been read
    held[lane] = mine;
    workgroupBarrier();
    for (var others = 32u; others > 0u; others /= 2u) {
        if (lane < others) {
            held[lane] += held[lane + others];
        }
        workgroupBarrier();
    }
    return held[0];
}

fn largest_of(mine: u32, lane: u32) -> u32 {
    largest_held[lane] = mine;
    workgroupBarrier();
    for (var others = 32u; others > 0u; others /= 2u) {
        if (lane < others) {
            largest_held[lane] = of_two(largest_held[lane], largest_held[lane + others]);
        }
        workgroupBarrier();
    }
    return largest_held[0];
}
