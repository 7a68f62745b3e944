// The range of a block from what kernels/extremes left.
// needs: statistics/{statistic}
@group(0) @binding(work) var<storage, read> work: array<u32>;

fn range_at(block: u32) -> Range {
    return range_of(keys(work[block], work[(KEYS - 1u) * sizes.blocks + block]));
}
