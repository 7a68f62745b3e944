// From the smallest number, at most 0, to the largest, at least 0.
// needs: swift/find/both, hardware/{hardware}, step/step
fn spread_of(found: Keys) -> u32 {
    return sum(found.x, found.y);
}

fn ends_are_ordinary(found: Keys) -> bool {
    return (found.x == 0u || is_ordinary(found.x)) && (found.y == 0u || is_ordinary(found.y));
}
