"""The stages of the recipe `auto`."""
