"""Rows are opened, lined up and looked over: structure only; no sum leaves from here."""
