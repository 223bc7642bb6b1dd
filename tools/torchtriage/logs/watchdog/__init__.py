"""Collective time-outs as the watchdog words them, judged over the ranks of a group."""
