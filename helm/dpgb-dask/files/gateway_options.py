# Cluster options of dpgb_dask for dask-gateway on Kubernetes; SETTINGS stands above it.
from dask_gateway_server.options import Integer, Options, Select, String
from traitlets import TraitError

GIB = 2**30
UNITS = {"M": 2**20, "G": GIB}

# the defaults, dask-scheduler and dask-worker, are gone from distributed since 2026.6
c.KubeClusterConfig.scheduler_cmd = ["dask", "scheduler"]
c.KubeClusterConfig.worker_cmd = ["dask", "worker"]

CONTAINER = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "volumeMounts": [
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "cache", "mountPath": "/cache"},
    ],
}
POD = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "enableServiceLinks": False,
    "nodeSelector": SETTINGS["nodeSelector"],
    "tolerations": SETTINGS["tolerations"],
    "volumes": [
        {"name": "scratch", "emptyDir": {"sizeLimit": SETTINGS["scratch"]}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": SETTINGS["cacheClaim"]}}
        if SETTINGS["cacheClaim"]
        else {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
    ],
}


def dpgb_memory(text):
    """Return the bytes of a text such as "1.5 G"; a bare number would be read as bytes."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        memory = int(float(number) * UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise TraitError(
            f"worker_memory={text!r} must be a number and M or G, such as '1.5 G'"
        ) from None
    if not GIB // 2 <= memory <= SETTINGS["maxMemory"] * GIB:
        raise TraitError(f"worker_memory={text!r} must be from 0.5 G to {SETTINGS['maxMemory']} G")
    return memory


def dpgb_folder(name, folder):
    """Return a folder of a volume: the rest of a worker's files is read-only."""
    if not (folder + "/").startswith(("/scratch/", "/cache/")) or ".." in folder:
        raise TraitError(
            f"{name}={folder!r} must be in /scratch or /cache, which are what a worker can write"
        )
    return folder


def dpgb_options(chosen):
    """Return the configuration of a cluster."""
    scratch = dpgb_folder("scratch", chosen.scratch)
    secret = SETTINGS["credentialsSecret"]
    return {
        "image": chosen.image,
        "image_pull_policy": SETTINGS["pullPolicy"],
        "idle_timeout": SETTINGS["idleTimeout"],
        "image_pull_secrets": SETTINGS["imagePullSecrets"],
        "worker_memory": dpgb_memory(chosen.worker_memory),
        "worker_cores": chosen.worker_threads,
        "worker_threads": chosen.worker_threads,
        "environment": {
            "TMPDIR": scratch,
            "DASK_TEMPORARY_DIRECTORY": scratch,
            "XDG_CACHE_HOME": dpgb_folder("kernels", chosen.kernels),
            "OMP_NUM_THREADS": "1",
        },
        "worker_extra_container_config": {
            **CONTAINER,
            **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        },
        "scheduler_extra_container_config": CONTAINER,
        "worker_extra_pod_config": POD,
        "scheduler_extra_pod_config": POD,
    }


c.Backend.cluster_options = Options(
    Select("image", SETTINGS["images"], default=SETTINGS["images"][0]),
    String("worker_memory", default=f"{SETTINGS['memory']} G", label="memory of a worker"),
    Integer("worker_threads", default=SETTINGS["threads"], min=1, max=SETTINGS["maxThreads"]),
    String("scratch", default="/scratch", label="folder of scratch"),
    String("kernels", default="/cache", label="folder of compiled kernels"),
    handler=dpgb_options,
)
