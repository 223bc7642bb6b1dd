"""NVIDIA GPUs and their NVLinks: kernel messages and nvidia-smi's answers, read and judged."""
