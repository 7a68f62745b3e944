"""The host's side: adapter, device, memory, shaders and their launches. Only here is wgpu known."""
