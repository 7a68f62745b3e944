"""ExecuTorch: what XNNPACK computes in integers, and torch's core ops for everything else."""
