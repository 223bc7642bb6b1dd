"""Logs of a job: pattern scan, per-rank timeline, tracebacks, launcher reports, watchdog lines and metrics."""
