"""Hosts on one machine: network namespaces on a bridge, each with a cable that can be cut. Needs root and iproute2."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from distributed import LocalCluster

BRIDGE = "10.209.0.1"


def run(command: str) -> None:
    """Run one `ip` command."""
    subprocess.run(command.split(), check=True, capture_output=True)


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


class Hosts:
    """Two hosts, each with one Dask worker, on a bridge with the scheduler."""

    def __init__(self, n_hosts: int = 2) -> None:
        self.mark = f"{os.getpid() % 10000}"
        self.bridge = f"dpgbb{self.mark}"
        self.hosts = range(n_hosts)
        self.workers: list[subprocess.Popen] = []

    def _cable(self, k: int) -> str:
        return f"dpgb{self.mark}v{k}"

    def _space(self, k: int) -> str:
        return f"dpgb{self.mark}n{k}"

    def __enter__(self) -> "Hosts":
        run(f"ip link add {self.bridge} type bridge")
        run(f"ip addr add {BRIDGE}/24 dev {self.bridge}")
        run(f"ip link set {self.bridge} up")
        for k in self.hosts:
            space, cable = self._space(k), self._cable(k)
            run(f"ip netns add {space}")
            run(f"ip link add {cable} type veth peer name eth0 netns {space}")
            run(f"ip link set {cable} master {self.bridge}")
            run(f"ip link set {cable} up")
            for command in (
                "addr add 10.209.0.{}/24 dev eth0",
                "link set eth0 up",
                "link set lo up",
            ):
                run(f"ip -n {space} " + command.format(k + 2))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        for k in self.hosts:
            subprocess.run(
                ["ip", "link", "delete", self._cable(k)], check=False, capture_output=True
            )
            subprocess.run(
                ["ip", "netns", "delete", self._space(k)], check=False, capture_output=True
            )
        subprocess.run(["ip", "link", "delete", self.bridge], check=False, capture_output=True)

    def start_worker(self, k: int, scheduler: str, folder: str) -> None:
        """Start a worker on host k."""
        address = f"10.209.0.{k + 2}"
        command = [
            "ip", "netns", "exec", self._space(k), sys.executable, "-m", "distributed.cli.dask_worker",
            scheduler, "--host", address, "--name", f"host{k}", "--nthreads", "1", "--no-nanny", "--no-dashboard",
            "--local-directory", folder,
        ]  # fmt: skip
        self.workers.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )

    def cut(self, k: int) -> None:
        """Cut the cable of host k: packets vanish, and no connection is told."""
        run(f"ip link set {self._cable(k)} down")


@contextmanager
def cluster_on(hosts: Hosts, folder: str) -> Iterator[LocalCluster]:
    """A scheduler on the bridge, and a worker on every host."""
    with LocalCluster(n_workers=0, host=BRIDGE, dashboard_address=":0") as cluster:
        for k in hosts.hosts:
            hosts.start_worker(k, cluster.scheduler_address, folder)
        yield cluster
