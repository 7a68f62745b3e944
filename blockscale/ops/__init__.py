"""What one calls on tensors and modules. One fused op a file."""
