"""Record what a release of the chart promises to later ones:  CHART_TOOLS=… python ci/chart/record.py

It writes ci/chart/released/VERSION.json: each set of values in helm/dpgb-dask/ci, and the fields of what it renders
that Kubernetes lets no upgrade change. tests/services/test_chart.py compares every later chart with all records.
"""

import json
import os
import subprocess
from pathlib import Path

import yaml

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "helm" / "dpgb-dask"
FIXED = {  # by kind, of a spec
    "StatefulSet": ("selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy"),
    "PersistentVolumeClaim": ("accessModes", "storageClassName", "volumeName", "volumeMode"),
    "Service": ("clusterIP",),
}


def immutable(objects: list[dict]) -> dict[str, dict]:
    """Return the fields of objects that cannot be changed by an upgrade."""
    return {
        f"{one['kind']}/{one['metadata']['name']}": {
            field: one["spec"].get(field) for field in FIXED[one["kind"]]
        }
        for one in objects
        if one["kind"] in FIXED
    }


if __name__ == "__main__":
    sets = {path.stem: path.read_text("utf-8") for path in sorted(CHART.glob("ci/*.yaml"))}
    asked = [{"chart": str(CHART), "values": values} for values in sets.values()]
    python = Path(os.environ["CHART_TOOLS"]) / "bin" / "python"
    answered = subprocess.run(
        [python, HERE / "helm_tool.py"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [immutable(one["objects"]) for one in json.loads(answered.stdout)]
    record = {"values": sets, "immutable": dict(zip(sets, kept, strict=True))}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["version"]
    path = HERE / "released" / f"{version}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(path)
