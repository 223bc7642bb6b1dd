"""The node's GPUs and kernel log as they are now: time-limited questions to nvidia-smi, dmesg and journalctl."""
