"""The chart's own policy: what every object that it renders must keep. Each rule yields what is wrong, in words."""

import re
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|(?<!NON)_KEY$|CREDENTIAL", re.IGNORECASE)
SECRET_TEXT = re.compile(
    r"://[^\s/:@$]+:[^\s/@]+@"  # a password in an address
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\bAKIA[0-9A-Z]{16}\b|\bpassword\s*[=:]\s*[^\s\"'}{$\\:]",
    re.IGNORECASE,
)
CLIENT = "dpgb-dask/ledger-client"


def pods(thing: Object) -> Iterator[tuple[Object, Object]]:
    """Yield the metadata and the spec of each pod that an object is, or makes."""
    kind, spec = thing["kind"], thing.get("spec", {})
    if kind == "Pod":
        yield thing["metadata"], spec
    if kind == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    if kind in ("CronJob", "Job", "StatefulSet", "Deployment", "DaemonSet", "ReplicaSet"):
        yield spec["template"]["metadata"], spec["template"]["spec"]


def containers(pod: Object) -> list[Object]:
    """Return all containers of a pod."""
    return pod.get("initContainers", []) + pod["containers"]


def kinds(thing: Object) -> Iterator[str]:
    """Secrets are named, never made; nobody gets rights in the cluster; nothing is opened to the outside."""
    allowed = {
        "ConfigMap",
        "CronJob",
        "Job",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "Pod",
        "Service",
        "ServiceAccount",
    }
    if thing["kind"] not in allowed | {"StatefulSet"}:
        yield f"kind {thing['kind']} is not one that this chart needs"
    if thing["kind"] == "Service" and thing["spec"].get("type", "ClusterIP") != "ClusterIP":
        yield "a service is opened to the outside"


def no_secrets(thing: Object) -> Iterator[str]:
    """A secret is in a Secret alone: in no ConfigMap, environment or argument."""
    for key, text in thing.get("data", {}).items() if thing["kind"] == "ConfigMap" else ():
        if SECRET_TEXT.search(text) or SECRET_NAME.search(key):
            yield f"ConfigMap key {key} holds a secret"
    for _, pod in pods(thing):
        for one in containers(pod):
            for text in one.get("command", []) + one.get("args", []):
                if SECRET_TEXT.search(text) or re.search(r"\$\(\w*PASSWORD\w*\)", text):
                    yield f"container {one['name']}: an argument holds a secret"
            for variable in one.get("env", []):
                held = str(variable.get("value", ""))
                path = held.startswith("/")  # of a file in a Secret's volume
                if SECRET_TEXT.search(held) or (
                    held and not path and SECRET_NAME.search(variable["name"])
                ):
                    yield f"container {one['name']}: {variable['name']} holds a secret"


def restricted_pod(thing: Object) -> Iterator[str]:
    """The pod security standard "restricted", and no token of the cluster's."""
    for _, pod in pods(thing):
        context = pod.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
            yield "the pod may run as root"
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield "the pod has no seccomp profile"
        if pod.get("automountServiceAccountToken") is not False:
            yield "the pod gets a token of the cluster's"
        if pod.get("enableServiceLinks") is not False:
            yield "the pod's environment holds addresses of all services"
        if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
            yield "the pod shares a namespace with its node"
        kinds = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
        for volume in pod.get("volumes", []):
            if not set(volume) - {"name"} <= kinds:
                yield f"volume {volume['name']} is of another kind than {sorted(kinds)}"
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"volume {volume['name']} has no limit"


def restricted_container(thing: Object) -> Iterator[str]:
    """Containers have no rights, and write to volumes alone."""
    for _, pod in pods(thing):
        for one in containers(pod):
            context = one.get("securityContext", {})
            if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
                yield f"container {one['name']} may gain privileges"
            if context.get("capabilities") != {"drop": ["ALL"]}:
                yield f"container {one['name']} keeps capabilities"
            if context.get("readOnlyRootFilesystem") is not True:
                yield f"container {one['name']} may write to its root file system"
            if context.get("runAsNonRoot") is False or context.get("runAsUser") == 0:
                yield f"container {one['name']} may run as root"
            if context.get("seccompProfile", {}).get("type", "RuntimeDefault") != "RuntimeDefault":
                yield f"container {one['name']} has no seccomp profile"
            fixed = {v["name"] for v in pod.get("volumes", []) if {"configMap", "secret"} & set(v)}
            for mount in one.get("volumeMounts", []):
                if mount["name"] in fixed and mount.get("readOnly") is not True:
                    yield f"container {one['name']}: {mount['mountPath']} is not read-only"


def resources(thing: Object) -> Iterator[str]:
    """Each container asks for CPU and memory, and has limits of both."""
    for _, pod in pods(thing):
        for one in containers(pod):
            held = one.get("resources", {})
            for part in ("requests", "limits"):
                if not {"cpu", "memory"} <= set(held.get(part, {})):
                    yield f"container {one['name']} has no {part} of CPU and memory"


def images(thing: Object) -> Iterator[str]:
    """An image has a fixed tag or a digest."""
    for _, pod in pods(thing):
        for one in containers(pod):
            name = one["image"].rsplit("/", 1)[-1]
            if "@sha256:" not in name and (":" not in name or name.endswith(":latest")):
                yield f"container {one['name']}: the tag of image {one['image']} is not fixed"


def ledger_clients(thing: Object) -> Iterator[str]:
    """The pods that hold a role's password are those that the network policy lets to the ledger; the ledger is none."""
    for metadata, pod in pods(thing):
        labels = metadata.get("labels", {})
        if labels.get("app.kubernetes.io/component") == "ledger":
            continue
        holds = any(
            v["name"] == "PGPASSWORD" for one in containers(pod) for v in one.get("env", [])
        )
        if holds != (labels.get(CLIENT) == "true"):
            yield f"label {CLIENT} and PGPASSWORD must go together"


RULES = (
    kinds,
    no_secrets,
    restricted_pod,
    restricted_container,
    resources,
    images,
    ledger_clients,
)


def problems(thing: Object) -> list[str]:
    """Return what is wrong with an object."""
    name = f"{thing['kind']}/{thing['metadata'].get('name', '')}"
    return [f"{name}: {rule.__name__}: {said}" for rule in RULES for said in rule(thing)]
