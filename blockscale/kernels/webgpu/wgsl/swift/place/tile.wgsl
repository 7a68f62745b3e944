// Units of blocks that are tiles of a matrix: TILE_UNITS a row, of which a tile has so many that
// they are BLOCK_UNITS; `across` of them lie beside one another.
fn place_of(block: u32, unit: u32) -> u32 {
    let down = block / sizes.across;
    let row = down * (BLOCK_UNITS / TILE_UNITS) + unit / TILE_UNITS;
    return (row * sizes.across + block - down * sizes.across) * TILE_UNITS + unit % TILE_UNITS;
}
