fn put_offsets(place: u32, word: u32) {
}
