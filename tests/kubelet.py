"""Pods of the chart run as a kubelet would run them: environment, volumes, arguments; in the image if it is there."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGE = Path(os.environ.get("DPGB_IMAGE", "/nowhere"), "dpgb-dask", "root").is_dir()
# what ci/Dockerfile sets; without an image the commands get it here
IMAGE_ENV = {
    "TMPDIR": "/scratch",
    "DASK_TEMPORARY_DIRECTORY": "/scratch",
    "XDG_CACHE_HOME": "/cache",
    "XDG_DATA_HOME": "/ledger",
}
OURS = "dpgb-dask:"


class Kubelet:
    """Runs containers of pods; claims are folders that stay, other volumes are made for each pod."""

    def __init__(self, folder, secrets, config_maps):
        self.folder, self.secrets, self.config_maps = folder, secrets, config_maps
        folder.chmod(0o755)  # the image's user is another one

    def claim(self, name):
        """Return the folder of a claim."""
        return self._writable(self.folder / "claims" / name)

    @staticmethod
    def _writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def environment(self, container, job=""):
        """Return what the environment of a container is."""
        values = {}
        for variable in container.get("env", []):
            value = variable.get("value", "")
            if "value" in variable:
                value = expanded(value, values)  # what comes from elsewhere stays as it is
            for kind, source in variable.get("valueFrom", {}).items():
                if kind == "fieldRef":
                    assert "job-name" in source["fieldPath"]
                    value = job
                else:
                    held = self.secrets if kind == "secretKeyRef" else self.config_maps
                    value = held[source["name"]][source["key"]]
            values[variable["name"]] = value
        return values

    def mounts(self, pod, container, values):
        """Return folder and read-only flag of each mount path of a container."""
        found = {}
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            if "persistentVolumeClaim" in volume:
                path = self.claim(volume["persistentVolumeClaim"]["claimName"])
            else:
                path = self._writable(Path(tempfile.mkdtemp(dir=self.folder)))
            if "configMap" in volume:
                for item in volume["configMap"].get("items", []):
                    text = self.config_maps[volume["configMap"]["name"]][item["key"]]
                    (path / item["path"]).write_text(text)
            below = expanded(mount.get("subPathExpr", mount.get("subPath", "")), values)
            found[mount["mountPath"]] = (
                self._writable(path / below) if below else path,
                mount.get("readOnly", False),
            )
        return found

    def command(self, pod, container, job=""):
        """Return the command line and the environment that run a container on this machine."""
        values = self.environment(container, job)
        mounts = self.mounts(pod, container, values)
        words = container.get("command", []) + container.get("args", [])
        words = [expanded(word, values) for word in words]
        ours = OURS in container["image"]
        if ours and IMAGE:
            options = []
            for name, value in values.items():
                options += ["-e", f"{name}={value}"]
            for inside, (path, read_only) in mounts.items():
                options += ["-v", f"{path}:{inside}{':ro' if read_only else ''}"]
            return [str(ROOT / "ci/image/run"), *options, "--", *words], dict(os.environ)
        if ours:
            values = {**IMAGE_ENV, **values}
        here = {name: moved(value, mounts) for name, value in values.items()}
        return [moved(word, mounts) for word in words], {**with_postgres(), **here}

    def run(self, pod, container, job=""):
        """Run a container to its end."""
        words, values = self.command(pod, container, job)
        return subprocess.run(words, env=values, capture_output=True, text=True, check=False)

    def run_and_kill(self, pod, container, word, job=""):
        """Run a container until it says a word on standard error, and kill it then; return what it had said."""
        words, values = self.command(pod, container, job)
        said = []
        with subprocess.Popen(
            words, env=values, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            for line in process.stderr:
                said.append(line)
                if word in line:
                    break
            os.killpg(process.pid, signal.SIGKILL)
        return "".join(said)


def expanded(text, values):
    """Return a text with its $(NAME) replaced; $$ is a $."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda found: values.get(found[1], found[0]) if found[1] else "$",
        text,
    )


def moved(text, mounts):
    """Return a text with paths inside a container replaced by those of this machine."""
    for inside, (path, _) in mounts.items():
        text = re.sub(rf"(?<![\w/.]){re.escape(inside)}(?![\w-])", str(path), text)
    return text


def with_postgres():
    """Return this environment, with PostgreSQL's programs in its PATH, which Debian leaves out."""
    found = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1:]]
    return {
        **os.environ,
        "PATH": ":".join([str(Path(sys.executable).parent), os.environ["PATH"], *found]),
    }
