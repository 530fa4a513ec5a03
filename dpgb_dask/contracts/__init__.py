"""Types that the private side, the controller and the released side share; no behaviour beyond checking themselves."""
