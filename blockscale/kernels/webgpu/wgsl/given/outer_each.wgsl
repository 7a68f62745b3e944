// An outer scale for each block (kernels/spread).
@group(0) @binding(outers) var<storage, read> outers: array<u32>;

fn given_outer(block: u32) -> u32 {
    return outers[block];
}
