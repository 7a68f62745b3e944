// Scales that nobody asks for.
fn keep(team: u32, chosen: Chosen) {
}

fn keep_words(lane: u32, first: u32, count: u32) {
}
