"""A released model as a file of another runtime: one module for each (docs/exports.md). Post-processing throughout."""
