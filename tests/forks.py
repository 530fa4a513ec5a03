"""Processes forked from a warm one: a fit gets its own process within milliseconds, and a test may kill it.

`Forks` starts this file as a server. It imports and warms up what a test names, and forks for each call: the child runs
one function, and nothing of the test's process is in it.
"""

import importlib
import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

from waiting import comes_true

HERE = Path(__file__).parent


class Forks:
    """A server of forked processes; a context manager. Functions are named "module:function"."""

    def __enter__(self):
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self

    def __exit__(self, *_error):
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()

    def warm(self, function, *args):
        """Call a function in the server itself."""
        self._ask("warm", function, *args)

    def start(self, function, *args):
        """Call a function in a new process; return its process id."""
        return self._ask("start", function, *args)

    def wait(self, pid):
        """Wait for a process that was started; return its exit code, negative for a signal."""
        return self._ask("wait", pid)

    def run(self, function, *args):
        """Call a function in a new process and return its exit code: 0, or 1 if it raised."""
        return self.wait(self.start(function, *args))

    def _ask(self, *message):
        self._server.stdin.write(json.dumps(message) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the server of forked processes ended"
        return json.loads(answer)


def _call(name, *args):
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(*args)


def _warm(*call):
    _call(*call)


def _start(*call):
    # pools that were shut down end their threads in their own time
    alone = comes_true(lambda: threading.active_count() == 1)
    assert alone, f"{threading.enumerate()} would not survive a fork"
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _call(*call)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the functions print is no answer
    for line in sys.stdin:
        kind, *message = json.loads(line)
        answer = {"warm": _warm, "start": _start, "wait": _wait}[kind](*message)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
