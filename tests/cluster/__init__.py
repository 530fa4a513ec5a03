"""Tests on clusters. A package to pytest, so that what they share ends with the last of them: to a plain folder
``scope="package"`` is the whole run, for which idle worker processes would go on measuring themselves.
"""
