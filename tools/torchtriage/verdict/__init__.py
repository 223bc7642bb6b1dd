"""From everything that was given to one verdict: gather signals, decide, render."""
