// Blocks of a matrix, one an invocation: [block_rows, block_columns] elements each, fewer at the ends.
// Made for pages, whose tensors are small: nothing here is fast, and a reader sees what a block is.
@group(0) @binding(numbers) var<storage, read> numbers: array<u32>;

struct Box { top: u32, bottom: u32, left: u32, right: u32 };

fn box_of(block: u32) -> Box {
    let top = block / sizes.across * sizes.block_rows;
    let left = block % sizes.across * sizes.block_columns;
    let bottom = min(top + sizes.block_rows, sizes.rows);
    let right = min(left + sizes.block_columns, sizes.columns);
    return Box(top, bottom, left, right);
}

fn number_at(row: u32, column: u32) -> u32 {
    return numbers[row * sizes.columns + column];
}

fn block_of(element: u32) -> u32 {
    let row = element / sizes.columns / sizes.block_rows;
    return row * sizes.across + element % sizes.columns / sizes.block_columns;
}
