"""Bundles: what was collected from a job, with a manifest that says how each part was made."""
