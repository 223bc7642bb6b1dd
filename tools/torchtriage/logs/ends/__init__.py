"""What launchers, schedulers and kernels say about the end of processes."""
