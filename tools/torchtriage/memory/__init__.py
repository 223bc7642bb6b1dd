"""torch.cuda.memory snapshots: read, holders, timeline, growth, fragmentation."""
