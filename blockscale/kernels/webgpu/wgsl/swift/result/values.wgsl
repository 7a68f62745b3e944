// Values after a round trip; scales are dropped.
// needs: swift/near/{how}, swift/code/{family}, swift/narrow/{narrow}
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn keep(s: Swift, block: u32, member: u32, b: u32, there: bool) {}

fn put_unit(place: u32, member: u32, unit: vec4<u32>, s: Swift, wanted: bool) {
    let low = values_of_coded(coded(near4(four_of(unit, 0u), s.step), s.step), s.step);
    var written = low;
    if (FOURS == 2u) {
        let high = values_of_coded(coded(near4(four_of(unit, 1u), s.step), s.step), s.step);
        written = narrowed8(low, high);
    }
    if (wanted) {
        values[place] = written;
    }
}
