"""private/rounds"""
