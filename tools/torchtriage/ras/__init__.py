"""Answers of NCCL's RAS service (``ncclras``): read text and JSON, compare the ranks of each communicator."""
