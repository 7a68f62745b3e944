"""torch's device "webgpu": tensors whose memory is on the GPU, and the ops that run on them there."""
