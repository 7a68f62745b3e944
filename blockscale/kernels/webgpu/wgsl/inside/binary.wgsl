// needs: bits/parts
// BinaryNet's clipped gradient (docs/numerics.md, 5).
fn inside(y: u32, s: Step) -> bool {
    return (y & MAGNITUDE) <= ONE;
}
