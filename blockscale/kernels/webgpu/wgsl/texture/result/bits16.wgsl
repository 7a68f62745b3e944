// Texels of four components of 16 bits are written.
@group(0) @binding(result) var result: texture_storage_3d<rgba16uint, write>;
