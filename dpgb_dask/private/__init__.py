"""Rows and raw sums: reading, encoding, shards, rounds. Runs on workers."""
