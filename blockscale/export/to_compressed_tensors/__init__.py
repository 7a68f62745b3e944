"""compressed-tensors: schemes of formats, tensors of layers, the files of a directory."""
