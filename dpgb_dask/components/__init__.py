"""The choices an algorithm makes, from released values only."""
