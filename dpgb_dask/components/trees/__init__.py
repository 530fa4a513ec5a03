"""The stage `Trees` and its parts: splits, leaves, candidates, rows, prices."""
