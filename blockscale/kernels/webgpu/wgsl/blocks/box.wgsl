// Blocks that are boxes in up to eight dimensions: n0 (outer) … n7 (inner) elements, in blocks of
// b0 … b7. Missing dimensions have one element. An index is taken apart from the inner one on.

struct Walk {
    rest: u32,   // the index over the dimensions that are left
    block: u32,  // over blocks, of the dimensions before
    stride: u32, // of the next dimension's blocks
}

fn walk(w: Walk, n: u32, b: u32) -> Walk {
    let outer = w.rest / n;
    let at = (w.rest - outer * n) / b;
    return Walk(outer, w.block + at * w.stride, w.stride * ((n + b - 1u) / b));
}

fn block_of(i: u32) -> u32 {
    var w = Walk(i, 0u, 1u);
    w = walk(w, sizes.n7, sizes.b7);
    w = walk(w, sizes.n6, sizes.b6);
    w = walk(w, sizes.n5, sizes.b5);
    w = walk(w, sizes.n4, sizes.b4);
    w = walk(w, sizes.n3, sizes.b3);
    w = walk(w, sizes.n2, sizes.b2);
    w = walk(w, sizes.n1, sizes.b1);
    return walk(w, sizes.n0, sizes.b0).block;
}
