fn put_zeros(place: u32, word: u32) {
}
