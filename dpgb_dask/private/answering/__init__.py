"""Kept rows answer a query: passes over blocks, scores brought up to date, sums."""
