"""The playbook and the decision tree: find, load, validate, search."""
