// The largest magnitude.
// needs: swift/find/magnitude
fn spread_of(found: Keys) -> u32 {
    return found;
}

fn ends_are_ordinary(found: Keys) -> bool {
    return true; // as the spread is
}
