// SPDX-License-Identifier: BSD-3-Clause
// Attention over a cache: powers of scores, keys as a lane reads them, and what is added to scores.

//# powers
// The order of scores, NaN above all, and powers of e.
// needs: bits/parts, torch/math/exponential
const BELOW_ALL: u32 = 0xff800000u; // -inf

fn rank(score: u32) -> u32 {
    return select(in_order(score), 0xffffffffu, is_nan(score));
}

fn ranked(place: u32) -> u32 {
    return select(~place, place & MAGNITUDE, place >= SIGN);
}

// Of a score that is at most `top`; 0 where either is not finite.
fn power_of(score: u32, top: u32) -> f32 {
    if (!is_finite(score) || !is_finite(top)) {
        return 0.0;
    }
    return exponential(bitcast<u32>(bitcast<f32>(score) - bitcast<f32>(top)));
}

//# mask/floats
// Floats that are added. MASK_STORAGE: as in bits/storage.
// needs: bits/storage, attention/mask/place
@group(0) @binding(mask) var<storage, read> mask: array<u32>;

fn added(head: u32, m: u32, token: u32) -> u32 {
    let place = mask_place(head, m, token);
    if (MASK_STORAGE == 0u) {
        return mask[place];
    }
    return widened(mask[place / 2u] >> (place % 2u * 16u) & 0xffffu, MASK_STORAGE);
}

//# mask/none
// A token sees those before it and itself.
fn added(head: u32, m: u32, token: u32) -> u32 {
    let last = sizes.every_token - sizes.new_tokens + m % sizes.new_tokens;
    return select(0u, 0xff800000u, token > last);
}

//# mask/place
// Strides of a mask; 0 of what all share.
fn mask_place(head: u32, m: u32, token: u32) -> u32 {
    let of_queries = head % sizes.key_heads * (sizes.rows / sizes.new_tokens) + m / sizes.new_tokens;
    return head / sizes.key_heads * sizes.mask_batch + of_queries * sizes.mask_head
        + m % sizes.new_tokens * sizes.mask_row + token * sizes.mask_token;
}

//# mask/seen
// Bytes, of which 0 hides a token.
// needs: attention/mask/place
@group(0) @binding(mask) var<storage, read> mask: array<u32>;

fn added(head: u32, m: u32, token: u32) -> u32 {
    let place = mask_place(head, m, token);
    let seen = (mask[place / 4u] >> (place % 4u * 8u) & 0xffu) != 0u;
    return select(0xff800000u, 0u, seen);
}

//# pieces/codes
// Keys in codes: neighbours of one block, whose step follows once for all (numerics.md, 7), but where
// an offset has to be added to each number.
// needs: matmul/right/codes
struct Piece { block: Block, factor: f32, doubt: bool }

fn piece_at(n: u32, quad: u32) -> Piece {
    let block = prepared_block(block_of(n, quad * 4u));
    return Piece(block, select(block.step, 1.0, HAS_OFFSET), block.doubt);
}

fn quad_of(n: u32, quad: u32, piece: Piece) -> Quad {
    let patterns = codes_of(n, quad);
    let found = values_of(patterns, piece.block.zero);
    let doubt = any_reserved(four_bytes(patterns));
    if (HAS_OFFSET) {
        return Quad(shifted_weights(found, piece.block.step, piece.block.offset), doubt);
    }
    return Quad(found, doubt);
}

//# pieces/floats
// Keys in floats.
// needs: matmul/right/floats
struct Piece { factor: f32, doubt: bool }

fn piece_at(n: u32, quad: u32) -> Piece {
    return Piece(1.0, false);
}

fn quad_of(n: u32, quad: u32, piece: Piece) -> Quad {
    return right_quad(0u, n, quad);
}

//# sinks/none
fn sink_of(head: u32) -> u32 {
    return 0xff800000u;
}

//# sinks/scores
// A score of each head of queries. SINK_STORAGE: as in bits/storage.
// needs: bits/storage
@group(0) @binding(sinks) var<storage, read> sinks: array<u32>;

fn sink_of(head: u32) -> u32 {
    if (SINK_STORAGE == 0u) {
        return sinks[head];
    }
    return widened(sinks[head / 2u] >> (head % 2u * 16u) & 0xffffu, SINK_STORAGE);
}
