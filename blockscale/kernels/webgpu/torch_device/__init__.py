"""torch's device "webgpu": tensors with memory on the GPU, and the ops that run on them there."""
