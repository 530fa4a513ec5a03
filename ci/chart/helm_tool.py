"""Lint, render and validate a chart by Helm itself, in an environment of its own, which `ci/chart/check` makes.

Standard input is a JSON list of requests ``{"chart": folder, "values": {…} or YAML}``; standard output, of answers
``{"objects": […], "notes": text}`` or ``{"error": text}``. Each chart is linted strictly with the values, and what it
renders is validated strictly against the schemas of the Kubernetes versions in ``KUBERNETES``.
"""

import json
import sys

import helm_python as helm
import kubernetes_validate
import yaml

KUBERNETES = (
    "1.27",
    "1.37",
)  # the oldest that Chart.yaml accepts, and the newest whose schemas are here


def answer(request):
    """Return what Helm makes of one request."""
    chart, values = request["chart"], request["values"]
    try:
        if isinstance(
            values, str
        ):  # a file, which Helm reads otherwise than PyYAML: 1e-6 is a number
            values = helm.values_from_yaml(values)
        rendered = helm.Chart.load(chart).render(
            values, name="rel", namespace="space", is_install=True
        )
        report = helm.lint(chart, values, strict=True, kube_version=f"v{KUBERNETES[0]}.0")
    except helm.HelmError as error:
        return {"error": str(error)}
    if said := report["errors"] + [m["error"] for m in report["messages"] if m["severity"] >= 2]:
        return {"error": "; ".join(said)}
    notes = "".join(text for path, text in rendered.items() if path.endswith("NOTES.txt"))
    objects = []
    for path, text in rendered.items():
        if not path.endswith("NOTES.txt"):
            objects += [one for one in yaml.safe_load_all(text) if one is not None]
    for one in objects:
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = "/".join(str(part) for part in error.path)
                name = f"{one['kind']}/{one['metadata']['name']}"
                return {"error": f"Kubernetes {version}: {name}: {where}: {error.message}"}
    return {"objects": objects, "notes": notes}


if __name__ == "__main__":
    json.dump([answer(request) for request in json.load(sys.stdin)], sys.stdout)
