// A table of codes.
// needs: matmul/codes
fn number_of(row: u32, column: u32) -> u32 {
    return weight_of(row, column);
}
