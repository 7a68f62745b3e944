// Texels of four components of 8 bits are written.
@group(0) @binding(result) var result: texture_storage_3d<rgba8uint, write>;
