// needs: hardware/{hardware}, bits/quick, offset/{offset}, element/{element}, values/{values}
// What codes stand for. Values of most elements lie so that products with an ordinary step are
// normal; not where FAR_VALUES says so.
fn four_values(codes: vec4<u32>, s: Step) -> vec4<u32> {
    let found = four_decoded(codes, s);
    if (s.ordinary && found.sure) {
        return with_offsets(four_products(found.values, vec4(s.bits)), s);
    }
    var values = vec4(0u);
    for (var i = 0u; i < 4u; i++) {
        values[i] = value_of(codes[i], s);
    }
    return values;
}

fn value_of(code: u32, s: Step) -> u32 {
    let value = decode(code, s);
    if (s.ordinary && !FAR_VALUES) {
        return with_offset(product(value, s.bits), s);
    }
    return with_offset(quick_multiply(value, s.bits), s);
}
