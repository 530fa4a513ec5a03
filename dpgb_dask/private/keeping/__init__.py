"""Rows as codes are kept: in memory, on scratch, in a store that outlives workers."""
