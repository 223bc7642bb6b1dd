"""What people say about a job in their own words."""
