"""Hosts on one machine: network namespaces on a bridge, each with a link that can be cut. Needs root and iproute2."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import LocalCluster

MARK = "dpgb"  # what our devices and namespaces begin with; the process that made them follows


def run(command: str, *, check: bool = True) -> str:
    """Run one `ip` command and return what it prints."""
    done = subprocess.run(command.split(), check=check, capture_output=True, text=True)
    return done.stdout


def sweep() -> None:
    """Delete what a process that was killed left: its bridge would go on to answer for its addresses."""
    for kind, listed in (
        ("link", run("ip -o link show")),
        ("netns", run("ip netns list")),
    ):
        for name, pid in re.findall(rf"\b({MARK}b?(\d+)(?:[vn]\d+|q)?)\b", listed):
            if not os.path.exists(f"/proc/{pid}"):
                run(f"ip {kind} delete {name}", check=False)


def free_network() -> str:
    """Return the first three numbers of a network /24 that no device of this host is in."""
    taken = run("ip -o -4 addr show") + run("ip -4 route show")
    return next(net for k in range(256) if f" {(net := f'10.209.{k}')}." not in taken)


def lacks() -> str | None:
    """Return why namespaces cannot be made here, or None."""
    if shutil.which("ip") is None:
        return "NO NETWORK NAMESPACES: iproute2 is not installed"
    if os.geteuid() != 0:
        return "NO NETWORK NAMESPACES: they need root"
    tried = subprocess.run(
        ["ip", "netns", "add", "dpgb-try"], check=False, capture_output=True, text=True
    )
    if tried.returncode:
        return f"NO NETWORK NAMESPACES: {tried.stderr.strip()}"
    run("ip netns delete dpgb-try")
    return None


def has_netem() -> bool:
    """Whether this kernel can delay packets by itself."""
    name = f"{MARK}b{os.getpid()}q"
    run(f"ip link add {name} type bridge")
    tried = subprocess.run(
        ["tc", "qdisc", "add", "dev", name, "root", "netem", "delay", "1ms"],
        check=False,
        capture_output=True,
    )
    run(f"ip link delete {name}")
    return tried.returncode == 0


class Hosts:
    """Hosts, each with one Dask worker, on a bridge with the scheduler.

    Parameters
    ----------
    n_hosts : int
    delay : float
        Seconds that every packet takes along the cable of a host, in either direction: by netem where the kernel has
        it, else by `cable`. ``delayed_by`` says which.
    """

    def __init__(self, n_hosts: int = 2, delay: float = 0.0) -> None:
        self.mark = f"{MARK}{os.getpid()}"
        self.bridge = f"{MARK}b{os.getpid()}"
        self.hosts = range(n_hosts)
        self.delay = delay
        self.delayed_by = "nothing"
        self.workers: list[subprocess.Popen] = []
        self.carriers: list[subprocess.Popen] = []

    def _cable(self, k: int) -> str:
        return f"{self.mark}v{k}"

    def _space(self, k: int) -> str:
        return f"{self.mark}n{k}"

    def _host(self, k: int) -> str:
        return f"{self.network}.{k + 2}"

    def __enter__(self) -> "Hosts":
        sweep()
        self.network = free_network()
        self.address = f"{self.network}.1"  # of the bridge, where the scheduler is
        run(f"ip link add {self.bridge} type bridge")
        run(f"ip addr add {self.address}/24 dev {self.bridge}")
        run(f"ip link set {self.bridge} up")
        for k in self.hosts:
            space, cable = self._space(k), self._cable(k)
            run(f"ip netns add {space}")
            self._lay(cable, space)
            run(f"ip link set {cable} master {self.bridge}")
            run(f"ip link set {cable} up")
            for command in (
                f"addr add {self._host(k)}/24 dev eth0",
                "link set eth0 up",
                "link set lo up",
            ):
                run(f"ip -n {space} {command}")
        return self

    def _lay(self, cable: str, space: str) -> None:
        """Lay a cable, whose other end is the device eth0 of a namespace."""
        if not self.delay or has_netem():
            run(f"ip link add {cable} type veth peer name eth0 netns {space}")
            if self.delay:
                self.delayed_by = "netem"
                netem = f"root netem delay {1000 * self.delay:g}ms"
                run(f"tc qdisc add dev {cable} {netem}")
                run(f"tc -n {space} qdisc add dev eth0 {netem}")
            return
        self.delayed_by = "a relay of frames, as the kernel has no netem"
        end = cable.replace("v", "t")
        command = [
            sys.executable,
            str(Path(__file__).with_name("cable.py")),
            cable,
            end,
            str(self.delay),
        ]
        carrier = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.carriers.append(carrier)
        assert carrier.stdout is not None
        assert carrier.stdout.readline() == "ready\n"
        run(f"ip link set {end} netns {space} name eth0")

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, *self.carriers):
            process.kill()
            process.communicate()
        for k in self.hosts:
            run(f"ip link delete {self._cable(k)}", check=False)
            run(f"ip netns delete {self._space(k)}", check=False)
        run(f"ip link delete {self.bridge}", check=False)

    def start_worker(self, k: int, scheduler: str, folder: str) -> None:
        """Start a worker on host k."""
        command = [
            "ip", "netns", "exec", self._space(k), sys.executable, "-m", "distributed.cli.dask_worker",
            scheduler, "--host", self._host(k), "--name", f"host{k}", "--nthreads", "1", "--no-nanny", "--no-dashboard",
            "--local-directory", folder,
        ]  # fmt: skip
        self.workers.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )

    def cut(self, k: int) -> None:
        """Cut the cable of host k: packets vanish, and no connection is told."""
        run(f"ip link set {self._cable(k)} down")

    def heal(self, k: int) -> None:
        """Put the cable of host k in again."""
        run(f"ip link set {self._cable(k)} up")

    def part(self, *hosts: int) -> None:
        """Let packets between any two of some hosts vanish; all others arrive."""
        for k in hosts:
            run(f"ip link set {self._cable(k)} type bridge_slave isolated on")


@contextmanager
def cluster_on(hosts: Hosts, folder: str) -> Iterator[LocalCluster]:
    """A scheduler on the bridge, and a worker on every host."""
    with LocalCluster(n_workers=0, host=hosts.address, dashboard_address=":0") as cluster:
        for k in hosts.hosts:
            hosts.start_worker(k, cluster.scheduler_address, folder)
        yield cluster
