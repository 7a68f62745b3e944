// Codes that are found from products which are at most an ulp off, and whether correct quotients
// would have the same: then nothing else need be computed.
// needs: hardware/{hardware}, step/step, bits/parts
struct Quick {
    codes: vec4<u32>,
    sure: bool,
}
