"""Configuration of dask-gateway-server for `ci/services/gateway` and `ci/services/hub`: local workers, TLS to clusters.

A gateway on Kubernetes runs an image; here the cluster option of that name says which packages workers see. Clusters
and their working folders are in the folder ``DPGB_PLACE``.
"""

import os
import sys
from pathlib import Path

from dask_gateway_server.options import Integer, Options, Select, String

c = get_config()  # noqa: F821 - of traitlets, which runs this file
place = Path(os.environ["DPGB_PLACE"])
hub = os.environ.get("DPGB_HUB_API")

c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = os.environ["DPGB_GATEWAY_SERVER"]
c.Proxy.address = os.environ["DPGB_GATEWAY_PROXY"]  # of HTTP and of TLS to the clusters
c.UnsafeLocalBackend.clusters_directory = str(place / "clusters")
c.Proxy.log_level = "error"
# not PYTHONPATH, which is the image's
c.UnsafeLocalBackend.inherited_environment = ["PATH", "LANG", "LC_ALL", "VIRTUAL_ENV"]

if hub is None:
    c.DaskGateway.authenticator_class = "dask_gateway_server.auth.SimpleAuthenticator"
    c.SimpleAuthenticator.password = os.environ["DPGB_GATEWAY_PASSWORD"]
else:
    c.DaskGateway.authenticator_class = "dask_gateway_server.auth.JupyterHubAuthenticator"
    c.JupyterHubAuthenticator.jupyterhub_api_token = os.environ["DPGB_GATEWAY_TOKEN"]
    c.JupyterHubAuthenticator.jupyterhub_api_url = hub
    c.Proxy.prefix = "/services/dask-gateway"

# the defaults, dask-scheduler and dask-worker, are gone from distributed since 2026.6
c.ClusterConfig.scheduler_cmd = [sys.executable, "-m", "dask", "scheduler"]
c.ClusterConfig.worker_cmd = [sys.executable, "-m", "dask", "worker"]
c.ClusterConfig.adaptive_period = 0.5
c.ClusterConfig.idle_timeout = 600  # if the tests that made it are killed

IMAGES = {  # name: PYTHONPATH
    "dpgb-dask:current": os.environ.get("PYTHONPATH", ""),
    "dpgb-dask:old": str(place / "old"),  # says that it is another version: `ci/services/gateway`
}


def options(chosen):
    """Return the configuration of a cluster."""
    return {
        "worker_memory": chosen.worker_memory,  # a text with a unit: a bare "1.5" would be one byte
        "worker_threads": chosen.worker_threads,
        "environment": {
            "DPGB_IMAGE": chosen.image,
            "PYTHONPATH": IMAGES[chosen.image],
            "OMP_NUM_THREADS": "1",
            "DASK_TEMPORARY_DIRECTORY": chosen.scratch,
            **({"NUMBA_CACHE_DIR": chosen.kernels} if chosen.kernels else {}),
        },
    }


c.Backend.cluster_options = Options(
    Select("image", list(IMAGES), default="dpgb-dask:current"),
    String("worker_memory", default="1.5 G", label="memory of a worker"),
    Integer("worker_threads", default=1, min=1, max=4),
    String("scratch", default=str(place), label="folder of scratch"),
    String("kernels", default="", label="folder of compiled kernels"),
    handler=options,
)
