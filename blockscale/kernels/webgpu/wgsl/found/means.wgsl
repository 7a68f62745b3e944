// The mean magnitude of a block from what kernels/extremes and kernels/sums left.
// needs: statistics/{statistic}, statistics/sum, choose/{rule}
@group(0) @binding(work) var<storage, read> work: array<u32>;
@group(0) @binding(sums) var<storage, read> sums: array<u32>;

fn range_at(block: u32) -> Range {
    let largest = work[block];
    let sum = vec2(sums[block], sums[sizes.blocks + block]);
    let mean = mean_of(sum, sums[2u * sizes.blocks + block], field_of(largest));
    return Range(mean | 0x80000000u, mean, largest >= 0x7f800000u);
}
