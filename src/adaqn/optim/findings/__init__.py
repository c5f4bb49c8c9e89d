"""What can be said about a run: each finding a small function from the record to what happened and what to change."""
