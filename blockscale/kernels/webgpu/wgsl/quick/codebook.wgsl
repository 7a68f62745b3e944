// Tables of at most 16 values: the search of element/codebook, and how near a threshold comes.
// needs: quick/quick, element/codebook
fn quick_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Quick {
    let y = select(near | vec4(SIGN), ~near, near >= vec4(SIGN)); // in_order
    let first = vec4(THRESHOLDS[7]);
    let a = y > first;
    let second = select(vec4(THRESHOLDS[3]), vec4(THRESHOLDS[11]), a);
    let b = y > second;
    let third = select(select(vec4(THRESHOLDS[1]), vec4(THRESHOLDS[5]), b),
                       select(vec4(THRESHOLDS[9]), vec4(THRESHOLDS[13]), b), a);
    let c = y > third;
    let below = select(select(vec4(THRESHOLDS[0]), vec4(THRESHOLDS[2]), c),
                       select(vec4(THRESHOLDS[4]), vec4(THRESHOLDS[6]), c), b);
    let above = select(select(vec4(THRESHOLDS[8]), vec4(THRESHOLDS[10]), c),
                       select(vec4(THRESHOLDS[12]), vec4(THRESHOLDS[14]), c), b);
    let last = select(below, above, a);
    let place = select(vec4(0u), vec4(8u), a) + select(vec4(0u), vec4(4u), b)
        + select(vec4(0u), vec4(2u), c) + select(vec4(0u), vec4(1u), y > last);
    let nearest = min(min(y - first + vec4(3u), y - second + vec4(3u)),
                      min(y - third + vec4(3u), y - last + vec4(3u)));
    let order = select(vec4(ORDER[0]), vec4(ORDER[1]), a);
    let codes = (order >> ((place & vec4(7u)) << vec4(2u))) & vec4(15u);
    let sure = s.ordinary && finite_together(near) && smallest_of_four(nearest) > 6u;
    return Quick(codes, sure);
}
