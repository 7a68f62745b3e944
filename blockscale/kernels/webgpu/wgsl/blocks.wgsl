// SPDX-License-Identifier: BSD-3-Clause
// Which block an element belongs to, and which elements a block has.

//# box
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

//# elements_of_box
// The elements of blocks that are boxes (blocks/box); a block's places are in row-major order.
const NOWHERE = 0xffffffffu;

struct Entry {
    block: u32,  // over the blocks of the dimensions that are left
    place: u32,  // in a block, over those dimensions
    index: u32,  // of the element, over the dimensions before
    stride: u32, // of the next dimension's elements
    there: bool, // whether the element exists: last blocks may be partial
}

fn enter(e: Entry, n: u32, b: u32) -> Entry {
    let blocks = (n + b - 1u) / b;
    let outer = e.block / blocks;
    let above = e.place / b;
    let at = (e.block - outer * blocks) * b + e.place - above * b;
    return Entry(outer, above, e.index + at * e.stride, e.stride * n, e.there && at < n);
}

fn element_at(block: u32, place: u32) -> u32 {
    var e = Entry(block, place, 0u, 1u, true);
    e = enter(e, sizes.n7, sizes.b7);
    e = enter(e, sizes.n6, sizes.b6);
    e = enter(e, sizes.n5, sizes.b5);
    e = enter(e, sizes.n4, sizes.b4);
    e = enter(e, sizes.n3, sizes.b3);
    e = enter(e, sizes.n2, sizes.b2);
    e = enter(e, sizes.n1, sizes.b1);
    e = enter(e, sizes.n0, sizes.b0);
    return select(NOWHERE, e.index, e.there);
}

fn block_size() -> u32 {
    return sizes.b0 * sizes.b1 * sizes.b2 * sizes.b3 * sizes.b4 * sizes.b5 * sizes.b6 * sizes.b7;
}

// Along one dimension: how many elements the block has there, and the block over what is left.
fn left_in(block: u32, n: u32, b: u32) -> vec2<u32> {
    let blocks = (n + b - 1u) / b;
    let outer = block / blocks;
    return vec2(min(b, n - (block - outer * blocks) * b), outer);
}

// How many elements of a block there are: last ones may be partial.
fn elements_in(block: u32) -> u32 {
    var l = left_in(block, sizes.n7, sizes.b7);
    var count = l.x;
    l = left_in(l.y, sizes.n6, sizes.b6);
    count *= l.x;
    l = left_in(l.y, sizes.n5, sizes.b5);
    count *= l.x;
    l = left_in(l.y, sizes.n4, sizes.b4);
    count *= l.x;
    l = left_in(l.y, sizes.n3, sizes.b3);
    count *= l.x;
    l = left_in(l.y, sizes.n2, sizes.b2);
    count *= l.x;
    l = left_in(l.y, sizes.n1, sizes.b1);
    count *= l.x;
    return count * left_in(l.y, sizes.n0, sizes.b0).x;
}

//# elements_of_line
// The elements of blocks that follow one another in memory.
const NOWHERE = 0xffffffffu;

fn element_at(block: u32, place: u32) -> u32 {
    let i = block * sizes.block + place;
    return select(NOWHERE, i, i < sizes.count);
}

fn block_size() -> u32 {
    return sizes.block;
}

// How many elements of a block there are: the last one may be partial.
fn elements_in(block: u32) -> u32 {
    return min(sizes.block, sizes.count - block * sizes.block);
}

//# line
// Blocks that follow one another in memory, each of sizes.block elements but for the last.
fn block_of(i: u32) -> u32 {
    return i / sizes.block;
}
