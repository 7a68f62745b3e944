// Where elements of operands lie that are views: element `i` of the result, in row-major order, is
// in operand number `which` at this place. `geometry` has the number of dimensions, the operands'
// offsets and, for each dimension from the last one, its size and the operands' strides.
@group(0) @binding(geometry) var<storage, read> geometry: array<u32>;

fn address(i: u32, which: u32) -> u32 {
    var rest = i;
    var found = geometry[1u + which];
    for (var d = 0u; d < geometry[0]; d++) {
        let row = 1u + OPERANDS + d * (OPERANDS + 1u);
        let size = geometry[row];
        found += rest % size * geometry[row + 1u + which];
        rest /= size;
    }
    return found;
}
