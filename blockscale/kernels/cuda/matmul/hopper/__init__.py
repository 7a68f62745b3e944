"""Device code in Gluon, below Triton, for Hopper's own instructions. Imported when first used."""
