"""What the fits of this folder must end with."""

from cluster.test_faults import undisturbed

__all__ = ["undisturbed"]  # a fixture
