// needs: hardware/{hardware}, bits/quick, offset/{offset}, element/{element}
// What a code stands for. Values of most elements lie so that products with an ordinary step are
// normal; not where FAR_VALUES says so.
fn value_of(code: u32, s: Step) -> u32 {
    let value = decode(code, s);
    if (s.ordinary && !FAR_VALUES) {
        return with_offset(product(value, s.bits), s);
    }
    return with_offset(quick_multiply(value, s.bits), s);
}
