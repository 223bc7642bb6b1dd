"""Profiler traces: where the time of each rank went, and whom the others wait for."""
