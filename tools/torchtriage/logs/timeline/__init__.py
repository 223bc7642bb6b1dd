"""One order for the lines of all files, and ranks for processes and tasks."""
