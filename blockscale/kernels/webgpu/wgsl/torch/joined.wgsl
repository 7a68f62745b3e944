// What the 64 invocations of a workgroup hold becomes one, by a function of two.
// needs: torch/binary/{joining}
var<workgroup> held: array<u32, 64>;

fn joined(mine: u32, lane: u32) -> u32 {
    held[lane] = mine;
    workgroupBarrier();
    for (var others = 32u; others > 0u; others /= 2u) {
        if (lane < others) {
            held[lane] = of_two(held[lane], held[lane + others]);
        }
        workgroupBarrier();
    }
    return held[0];
}
