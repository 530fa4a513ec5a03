"""The chart helm/dpgb-dask for tests: what Helm makes of its values, and the modules of ci/chart."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "dpgb-dask"
SETS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(CHART.glob("ci/*.yaml"))}


def module(name):
    """Return a module of ci/chart, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "ci" / "chart" / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


policy, record, values_table = map(module, ("policy", "record", "values_table"))


def tool(name, asked):
    """Return the answer of a program in the environment of ci/chart/check."""
    python = Path(os.environ.get("CHART_TOOLS", "/nowhere")) / "bin" / "python"
    if not python.exists():
        pytest.skip("NO HELM: its tools are not here, run ci/chart/check")
    done = subprocess.run(
        [python, ROOT / "ci" / "chart" / name],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rendered(*values, chart=CHART):
    """Return what Helm makes of each set of values."""
    return tool("helm_tool.py", [{"chart": str(chart), "values": one} for one in values])


def gateway_pods(objects, choices):
    """Return what dask-gateway makes of a user's choices under the cluster options that the chart writes."""
    (text,) = [
        one["data"]["values.yaml"]
        for one in objects
        if one["metadata"]["name"].endswith("-for-gateway")
    ]
    code = yaml.safe_load(text)["gateway"]["extraConfig"]["dpgb-dask"]
    return tool("gateway_pods.py", {"code": code, "choices": choices})
