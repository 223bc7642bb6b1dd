"""Numbers that a loop prints: read, kept as series, judged."""
