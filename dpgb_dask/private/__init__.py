"""The private side, which holds rows and raw sums: reading, encoding, shards and rounds. Runs on workers."""
