// The mean magnitude of a block from what kernels/extremes and kernels/sums left.
// needs: statistics/{statistic}, statistics/sum, choose/{rule}
@group(0) @binding(work) var<storage, read> work: array<u32>;
@group(0) @binding(totals) var<storage, read> totals: array<u32>;

fn range_at(block: u32) -> Range {
    let largest = work[block];
    let sum = vec2(totals[block], totals[sizes.blocks + block]);
    let mean = mean_of(sum, totals[2u * sizes.blocks + block], field_of(largest));
    return Range(mean | 0x80000000u, mean, largest >= 0x7f800000u);
}
