// Four numbers that are neighbours along k; doubt: one is too large for the quick way, or no number.
struct Quad { values: vec4<f32>, doubt: bool }
