"""Encoding of values as integers, by the schema and the value alone; the same for training and prediction."""
