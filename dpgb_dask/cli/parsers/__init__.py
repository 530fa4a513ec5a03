"""The options of each command. These files import little: help and errors of usage need no Dask, which takes seconds.

What a command does is a function in another file of ``cli``, imported when the command runs (`options.command`).
"""
