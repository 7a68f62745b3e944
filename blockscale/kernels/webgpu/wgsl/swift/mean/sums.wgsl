// Means of magnitudes (docs/numerics.md, 3.2), of blocks whose largest one is ordinary: floor(|x|
// 2^(30 - e)) is a product and a conversion, and what is flushed on the way is below one. Of teams
// beyond a subgroup's reach only the first neighbours compute the mean, and tell the others.
// needs: hardware/{hardware}, statistics/sum, choose/{rule}, bits/multiply, bits/parts
var<private> mean: u32;
var<private> least: u32; // fl(0.7f mean)
var<private> own: u32; // the invocation
var<workgroup> means_of_teams: array<vec2<u32>, GROUP / TEAM>;

fn with_sizes(sum: Sum, x: vec4<u32>, found: u32, turn: u32) -> Sum {
    let size = x & vec4(MAGNITUDE);
    let factor = (284u - field_of(found)) << 23u; // 2^(30 - e)
    let units = vec4<u32>(bitcast<vec4<f32>>(four_products(size, vec4(factor))));
    let counts = select(vec4(1u), vec4<u32>(size > vec4(least)), turn == 1u);
    let four = units * counts;
    let low = four.x + four.y; // each is below 2^31
    let high = four.z + four.w;
    let some = both(Sum(low, 0u, 0u), Sum(high, 0u, counts.x + counts.y + counts.z + counts.w));
    return both(sum, some);
}

fn keep_mean(sum: Sum, found: u32, lane: u32) {
    own = lane;
    if (lane % TEAM < REACH) {
        mean = mean_of(vec2(sum.low, sum.high), sum.count, field_of(found));
        least = multiply(0x3f333333u, mean);
    }
    if (TEAM > REACH) {
        workgroupBarrier();
        if (lane % TEAM == 0u) {
            means_of_teams[lane / TEAM] = vec2(mean, least);
        }
        workgroupBarrier();
        let told = means_of_teams[lane / TEAM];
        mean = told.x;
        least = told.y;
    }
}
