"""released"""
