"""The only place where the three sides meet."""
