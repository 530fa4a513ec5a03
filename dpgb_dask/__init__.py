"""Differentially private gradient boosting on Dask."""
