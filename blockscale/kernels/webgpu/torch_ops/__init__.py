"""Ops of torch on its device "webgpu": what runs each of them, one kind a file."""
