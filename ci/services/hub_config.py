"""Configuration of JupyterHub, for `ci/services/hub`: a local spawner, and dask-gateway as a service.

What a user's notebook has to know comes from here, as on any hub: where the gateway is, the ledger, the rows.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821 - of traitlets, which runs this file
place = Path(os.environ["DPGB_PLACE"])
public = os.environ["DPGB_HUB"]  # http://host:port

c.JupyterHub.bind_url = public
c.JupyterHub.hub_bind_url = os.environ["DPGB_HUB_API"].removesuffix("/hub/api")
c.JupyterHub.db_url = f"sqlite:///{place}/hub/hub.sqlite"
c.JupyterHub.cookie_secret_file = str(place / "hub" / "cookie_secret")
c.JupyterHub.log_level = "WARN"
c.ConfigurableHTTPProxy.command = [
    str(place / "npm" / "node_modules" / ".bin" / "configurable-http-proxy"),
    "--log-level=error",
]
c.ConfigurableHTTPProxy.api_url = os.environ["DPGB_HUB_PROXY_API"]
c.ConfigurableHTTPProxy.pid_file = str(place / "hub" / "proxy.pid")

c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = os.environ["DPGB_HUB_PASSWORD"]
c.Authenticator.allow_all = True

c.JupyterHub.services = [
    {
        "name": "dask-gateway",
        "api_token": os.environ["DPGB_GATEWAY_TOKEN"],
        "url": f"http://{os.environ['DPGB_GATEWAY_PROXY']}",
    }
]
c.JupyterHub.load_roles = [
    {"name": "gateway", "scopes": ["read:users"], "services": ["dask-gateway"]},
    {"name": "user", "scopes": ["self", "access:services"]},
]

c.JupyterHub.spawner_class = "simple"  # local processes, all of one system user
c.SimpleLocalProcessSpawner.home_dir_template = str(place / "home" / "{username}")
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
# without extensions that happen to be installed, and would ask whether to build the page anew
c.Spawner.args = ["--LabApp.core_mode=True", *(["--allow-root"] if os.getuid() == 0 else [])]
c.Spawner.default_url = "/lab"
c.Spawner.http_timeout = c.Spawner.start_timeout = 240
c.Spawner.env_keep = ["PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "PYTHONPATH"]
c.Spawner.environment = {
    "DASK_GATEWAY__ADDRESS": f"{public}/services/dask-gateway",
    "DASK_GATEWAY__PUBLIC_ADDRESS": "/services/dask-gateway",
    "DASK_GATEWAY__PROXY_ADDRESS": f"tls://{os.environ['DPGB_GATEWAY_PROXY']}",
    "DASK_GATEWAY__AUTH__TYPE": "jupyterhub",  # the user's own token, JUPYTERHUB_API_TOKEN
    "DPGB_LEDGER": os.environ["DPGB_HUB_LEDGER"],
    "DPGB_ROWS": str(place / "people.zarr"),
    "JUPYTERLAB_SETTINGS_DIR": str(place / "settings"),
    "OMP_NUM_THREADS": "1",
}
