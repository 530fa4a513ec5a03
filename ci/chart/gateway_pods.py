"""Make the pods of a cluster with dask-gateway's own code and the cluster options that the chart writes.

Runs in the environment of `ci/chart/check`. Standard input is JSON: ``{"code": text of gateway.extraConfig, "choices":
[{…}, …]}``; standard output a list of ``{"pods": [scheduler, worker]}`` or ``{"error": text}``, one for each choice.
"""

import json
import sys

from dask_gateway_server.backends.kubernetes.backend import KubeClusterConfig
from dask_gateway_server.backends.kubernetes.controller import KubeController
from dask_gateway_server.models import User
from traitlets.config import Config


def main():
    asked = json.load(sys.stdin)
    config = Config()
    exec(
        compile(asked["code"], "extraConfig", "exec"), {"c": config}
    )  # as the gateway's chart does
    options = config.Backend.cluster_options
    controller = KubeController(gateway_instance="gateway", api_url="http://gateway/api")
    answers = []
    for choice in asked["choices"]:
        try:
            overrides = options.get_configuration(options.parse_options(choice), User("ada"))
            cluster = KubeClusterConfig(config=config, **overrides)
        except Exception as error:
            answers.append({"error": str(error)})
            continue
        pods = [controller.make_pod("space", "abc", cluster, is_worker=w) for w in (False, True)]
        answers.append({"pods": pods})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
