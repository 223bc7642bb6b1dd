"""Flight-recorder dumps: read them in isolation, align the ranks of each process group, judge what diverges first."""
