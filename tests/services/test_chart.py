"""The chart helm/dpgb-dask by Helm itself: values render or are refused by name, upgrades render, its policy holds."""

import copy
import json
import re
import shutil

import pytest
import yaml
from charts import CHART, ROOT, SETS, gateway_pods, policy, record, rendered, values_table
from kubelet import expanded

from dpgb_dask.cli.options import USAGE, Parser
from dpgb_dask.cli.parsers import fit as fit_command

pytestmark = pytest.mark.services

RELEASED = sorted((ROOT / "ci" / "chart" / "released").glob("*.json"))


@pytest.fixture(scope="module")
def charts():
    """The objects of each set of values, by the set's name."""
    answers = rendered(*SETS.values())
    assert [one.get("error") for one in answers] == len(SETS) * [None]
    return {name: one["objects"] for name, one in zip(SETS, answers, strict=True)}


@pytest.fixture(scope="module")
def everything(charts):
    return charts["everything-values"]


def test_every_set_of_values_renders(charts, record_property):
    kinds = {name: sorted({one["kind"] for one in objects}) for name, objects in charts.items()}
    assert "StatefulSet" not in kinds["existing-values"]
    assert "Job" in kinds["everything-values"]
    assert not any("Secret" in one for one in kinds.values())
    told = ", ".join(f"{name} {len(objects)} objects" for name, objects in charts.items())
    record_property("saw", f"rendered, strictly valid for the oldest and newest Kubernetes: {told}")


def test_installing_charges_nothing(everything):
    """A fit runs by a Job that a person makes: its template is a CronJob that never starts one by itself."""
    fits = [
        one["spec"]
        for one in everything
        for _, pod in policy.pods(one)
        if pod["containers"][0].get("command") == ["dpgb-dask", "fit"]
    ]
    assert len(fits) == 2
    assert all(one["suspend"] is True and one["schedule"] == "0 0 31 2 *" for one in fits)


def fit_of(objects):
    """The one CronJob of a fit, and its pod."""
    for one in objects:
        for _, pod in policy.pods(one):
            if pod["containers"][0].get("command") == ["dpgb-dask", "fit"]:
                return one, pod
    raise AssertionError("no fit")


def test_a_job_that_runs_takes_nothing_that_an_upgrade_changes():
    """Its next pod is made of the Job's own template: what that names must stay as it was."""
    first = {"ledger": EXISTING, "fits": {"people": PEOPLE}}
    schema = PEOPLE["schema"].replace("90", "91")
    changes = [{"epsilon": 2.5, "delta": 1e-7, "account": "others"}, {"schema": schema}]
    fits = [{"people": PEOPLE | change} for change in changes]
    answers = rendered(first, *(first | {"fits": one} for one in fits))
    names = []
    for one in answers:
        _, pod = fit_of(one["objects"])
        maps = {thing["metadata"]["name"]: thing for thing in one["objects"] if "data" in thing}
        named = [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v]
        assert "configMapKeyRef" not in json.dumps(pod)
        assert all(maps[name]["immutable"] is True and kept(maps[name]) for name in named)
        names += named
    assert names[0] == names[1] != names[2]
    args = fit_of(answers[1]["objects"])[1]["containers"][0]["args"]
    assert {"--epsilon=2.5", "--delta=1e-07", "--account=others"} <= set(args)


def test_no_two_kinds_of_pods_share_a_volume(charts):
    """A volume is often on one node at a time: pods on others would wait for a fit, and a fit for them."""
    for objects in charts.values():
        users = {}
        for one in objects:
            for metadata, pod in policy.pods(one):
                kind = metadata["labels"]["app.kubernetes.io/component"]
                for volume in pod.get("volumes", []):
                    if "persistentVolumeClaim" in volume:
                        name = volume["persistentVolumeClaim"]["claimName"]
                        users.setdefault(name, set()).add(kind)
        claims = {o["metadata"]["name"]: o for o in objects if o["kind"].endswith("VolumeClaim")}
        assert set(claims) - set(users) <= {"rel-dpgb-dask-state"}  # of fits to come
        assert all(len(kinds - {"test"}) == 1 for kinds in users.values()), users
        assert all(kept(one) for one in claims.values())


def test_volumes_of_heads_have_the_class_that_keys_have(everything):
    """Values of a chart that had no such volumes may name a class because the cluster has no default one."""
    classes = {
        one["metadata"]["name"].removeprefix("rel-dpgb-dask-"): one["spec"].get("storageClassName")
        for one in everything
        if one["kind"] == "PersistentVolumeClaim"
    }
    assert classes["auditor"] == classes["owner"] == classes["state"] == "fast"


def test_a_job_at_night_that_does_not_end_fails(everything):
    """It is the alarm, and the next one would wait for it."""
    jobs = {
        one["metadata"]["name"]: one["spec"]["jobTemplate"]["spec"]
        for one in everything
        if one["kind"] == "CronJob" and not one["spec"].get("suspend")
    }
    assert len(jobs) == 2
    assert all(0 < job["activeDeadlineSeconds"] < 24 * 3600 for job in jobs.values())


def kept(thing):
    return thing["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"


def test_what_a_job_that_runs_needs_outlives_its_entry_and_the_release(everything):
    """Jobs belong to their CronJob: with it they would be deleted, and their fits stay unfinished."""
    job, pod = fit_of(everything)
    by_name = {f"{one['kind']}/{one['metadata']['name']}": one for one in everything}
    named = [f"ServiceAccount/{pod['serviceAccountName']}"]
    for volume in pod["volumes"]:
        if "configMap" in volume:
            named.append(f"ConfigMap/{volume['configMap']['name']}")
        if "persistentVolumeClaim" in volume:
            named.append(f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}")
    own = [by_name[name] for name in named if name != "PersistentVolumeClaim/data"]
    assert len(own) == 4
    assert all(map(kept, [job, *own]))
    limits = [job["spec"][f"{end}JobsHistoryLimit"] for end in ("successful", "failed")]
    assert min(limits) >= 100


def test_the_policy_holds(charts, record_property):
    wrong = [
        text for objects in charts.values() for one in objects for text in policy.problems(one)
    ]
    assert wrong == []
    n_objects = sum(map(len, charts.values()))
    record_property("saw", f"{len(policy.RULES)} rules on {n_objects} objects: nothing wrong")


def change(path, value):
    """Return a change of an object: the value at a path, or what is there removed for None."""

    def changed(thing):
        *above, last = path.split("/")
        for key in above:
            thing = thing[int(key) if isinstance(thing, list) else key]
        if value is None:
            del thing[last]
        else:
            thing[int(last) if isinstance(thing, list) else last] = value

    return changed


JOB = "spec/template/spec"
BITES = {
    "kinds": [("Service", "spec/type", "LoadBalancer"), ("Service", "kind", "ClusterRole")],
    "no_secrets": [
        ("ConfigMap", "data", {"url": "postgresql://ada:pw@host/db"}),
        ("ConfigMap", "data", {"admin-password": "x"}),
        ("Job", f"{JOB}/containers/0/env/0", {"name": "PGPASSWORD", "value": "pw"}),
        ("Job", f"{JOB}/containers/0/env/0", {"name": "X", "value": "s3://AKIA0123456789ABCDEF"}),
        ("Job", f"{JOB}/containers/0/args/0", "postgresql://ada:pw@host/db"),
        ("Job", f"{JOB}/initContainers/0/args/0", "--url=postgresql://ada:$(PGPASSWORD)@host/db"),
    ],
    "restricted_pod": [
        ("Job", f"{JOB}/securityContext/runAsNonRoot", None),
        ("Job", f"{JOB}/securityContext/runAsUser", 0),
        ("Job", f"{JOB}/securityContext/seccompProfile", {"type": "Unconfined"}),
        ("Job", f"{JOB}/automountServiceAccountToken", None),
        ("Job", f"{JOB}/enableServiceLinks", None),
        ("Job", f"{JOB}/hostNetwork", True),
        ("Job", f"{JOB}/volumes/0", {"name": "scratch", "hostPath": {"path": "/"}}),
        ("Job", f"{JOB}/volumes/0", {"name": "scratch", "emptyDir": {}}),
    ],
    "restricted_container": [
        ("Job", f"{JOB}/containers/0/securityContext/allowPrivilegeEscalation", None),
        ("Job", f"{JOB}/containers/0/securityContext/privileged", True),
        ("Job", f"{JOB}/initContainers/0/securityContext/capabilities", {"drop": []}),
        ("Job", f"{JOB}/containers/0/securityContext/readOnlyRootFilesystem", False),
        ("Job", f"{JOB}/containers/0/securityContext/runAsUser", 0),
        ("Job", f"{JOB}/containers/0/volumeMounts/2/readOnly", None),
    ],
    "resources": [
        ("Job", f"{JOB}/containers/0/resources/limits/memory", None),
        ("StatefulSet", f"{JOB}/containers/0/resources/requests", None),
    ],
    "images": [
        ("Job", f"{JOB}/containers/0/image", "dpgb-dask:latest"),
        ("Job", f"{JOB}/containers/0/image", "registry:5000/dpgb-dask"),
    ],
    "ledger_clients": [
        ("Job", "spec/template/metadata/labels", {}),
        ("Pod", "spec/containers/0/env", []),
    ],
}


@pytest.mark.parametrize("rule", policy.RULES, ids=lambda rule: rule.__name__)
def test_each_rule_of_the_policy_bites(everything, rule):
    for kind, path, value in BITES[rule.__name__]:
        thing = copy.deepcopy(next(one for one in everything if one["kind"] == kind))
        assert not list(rule(thing))
        change(path, value)(thing)
        assert list(rule(thing)), (kind, path)


# values that are refused, and the name that the refusal must give
PEOPLE = yaml.safe_load(SETS["existing-values"])["fits"]["people"] | {"delta": 1e-6}
EXISTING = yaml.safe_load(SETS["existing-values"])["ledger"]
TEAM = {
    "mode": "statefulset",
    "tls": {"mode": "disable"},
    "secrets": {name: f"s-{name}" for name in ("owner", "analyst", "auditor", "superuser")},
}
WRONG = [
    ({"imagge": {}}, "imagge"),
    ({"image": {"tag": "latest"}}, "/image/tag"),
    ({"image": {"digest": "0123"}}, "/image/digest"),
    ({"tolerations": [{"effect": "Never"}]}, "/tolerations/0/effect"),
    ({"gateway": {"nodeSelector": {"pool": 1}}}, "/gateway/nodeSelector/pool"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ({"image": {"repository": "Not A Name"}}, "/image/repository"),
    ({"gateway": {"threads": 0}}, "/gateway/threads"),
    ({"gateway": {"address": "gateway.space"}}, "/gateway/address"),
    ({"gateway": {"proxyAddress": "http://user:pw@gateway"}}, "/gateway/proxyAddress"),
    ({"gateway": {"auth": "none"}}, "/gateway/auth"),
    ({"gateway": {"memory": "4 G"}}, "/gateway/memory"),
    ({"gateway": {"images": ["dpgb-dask"]}}, "/gateway/images/0"),
    ({"gateway": {"images": ["dpgb-dask:latest"]}}, "/gateway/images/0"),
    ({"gateway": {"scratch": "fifty"}}, "/gateway/scratch"),
    ({"hub": {"enabled": "yes"}}, "/hub/enabled"),
    ({"ledger": {"mode": "sqlite"}}, "/ledger/mode"),
    ({"ledger": {"password": "x"}}, "password"),
    ({"ledger": {"host": "user:pw@host"}}, "/ledger/host"),
    ({"ledger": {"port": "5432"}}, "/ledger/port"),
    ({"ledger": {"tls": {"mode": "prefer"}}}, "/ledger/tls/mode"),
    ({"ledger": {"roles": {"owner": "a; DROP"}}}, "/ledger/roles/owner"),
    ({"ledger": {"accounts": [{"name": "people", "epsilon": 3}]}}, "delta"),
    ({"ledger": {"accounts": [{"name": "p", "epsilon": 0, "delta": 0}]}}, "/accounts/0/epsilon"),
    ({"ledger": {"statefulset": {"image": "postgres:latest"}}}, "/ledger/statefulset/image"),
    ({"ledger": {"backup": {"schedule": "daily"}}}, "/ledger/backup/schedule"),
    ({"state": {"accessMode": "Shared"}}, "/state/accessMode"),
    ({"heads": {"accessMode": "ReadWriteOnce"}}, "accessMode"),
    ({"smallResources": {"limits": {"cpu": 1, "gpu": 1}}}, "gpu"),
    ({"fits": {"people": PEOPLE | {"resources": {"requests": {"cpu": 1}}}}}, "limits"),
    ({"fits": {"People": PEOPLE}}, "People"),
    ({"fits": {"people": PEOPLE | {"epsilon": "1"}}}, "/fits/people/epsilon"),
    ({"fits": {"people": PEOPLE | {"delta": 1}}}, "/fits/people/delta"),
    ({"fits": {"people": PEOPLE | {"schema": "people.json"}}}, "/fits/people/schema"),
    ({"fits": {"people": PEOPLE | {"data": "people.csv"}}}, "/fits/people/data"),
    ({"fits": {"people": PEOPLE | {"arguments": ["--eps=9"]}}}, "/fits/people/arguments/0"),
    ({"fits": {"people": {k: v for k, v in PEOPLE.items() if k != "epsilon"}}}, "epsilon"),
    ({"networkPolicy": {"ledgerClientNamespaces": [""]}}, "/ledgerClientNamespaces/0"),
    # what only the templates can see
    ({"gateway": {"maxThreads": 1}}, "gateway.threads: 2"),
    ({"gateway": {"maxMemory": 3.5}}, "gateway.memory: 4"),
    ({"ledger": TEAM | {"roles": {"analyst": "dpgb_owner"}}}, "ledger.roles"),
    ({"ledger": TEAM | {"roles": {"owner": "postgres"}}}, "ledger.roles"),
    ({"ledger": TEAM | {"roles": {"auditor": "pg_auditor"}}}, "ledger.roles"),
    ({"fits": {"people": PEOPLE}}, "ledger.mode"),
    ({"ledger": EXISTING, "fits": {"people": PEOPLE | {"data": "/data/p.csv"}}}, "dataClaim"),
    ({"ledger": EXISTING | {"host": ""}}, "ledger.host"),
    ({"ledger": EXISTING | {"tls": {}}}, "ledger.tls.existingSecret"),
    ({"ledger": EXISTING | {"secrets": {}}}, "ledger.secrets.auditor"),
    ({"ledger": {"accounts": [{"name": "p", "epsilon": 1, "delta": 0}]}}, "ledger.accounts"),
    ({"ledger": TEAM | {"tls": {}}}, "ledger.tls.existingSecret"),
    ({"ledger": TEAM | {"secrets": TEAM["secrets"] | {"superuser": ""}}}, "secrets.superuser"),
]


def test_wrong_values_are_refused_with_their_name(record_property):
    answers = rendered(*(values for values, _ in WRONG))
    for (values, name), one in zip(WRONG, answers, strict=True):
        assert name in one.get("error", "accepted"), (values, one)
    record_property("saw", f"{len(WRONG)} wrong values refused by name")


def leaves(values, path=""):
    """Return the paths of all values that are not mappings, or are empty ones."""
    if isinstance(values, dict) and values:
        return {leaf for key in values for leaf in leaves(values[key], f"{path}.{key}".strip("."))}
    return {path}


def test_the_readme_lists_every_value():
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    assert values_table.table(text) in readme  # python ci/chart/values_table.py helm/dpgb-dask
    known = values_table.documented(text)
    plain = leaves(yaml.safe_load(text))
    assert {
        leaf for leaf in plain if not any(f"{leaf}.".startswith(f"{k}.") for k in known)
    } == set()
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    fit = schema["properties"]["fits"]["additionalProperties"]["properties"]
    assert sorted(re.findall(r"^\| `fits\.NAME\.(\w+)`", readme, re.MULTILINE)) == sorted(fit)


def test_the_schema_knows_every_value():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def check(values, part, path):
        part = schema["definitions"][part["$ref"].split("/")[-1]] if "$ref" in part else part
        if isinstance(values, dict):
            assert part.get("additionalProperties") is not None, path
            for key, value in values.items():
                check(value, part["properties"][key], f"{path}.{key}")

    check(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), schema, "")


def test_arguments_of_a_fit_are_options_of_the_command():
    """Those that the chart sets itself cannot be given a second time."""
    parser = Parser()
    fit_command.add(parser.add_subparsers())
    command = parser._subparsers._group_actions[0].choices["fit"]
    options = {name[2:] for action in command._actions for name in action.option_strings}
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    fit = schema["properties"]["fits"]["additionalProperties"]["properties"]
    given = set(re.search(r"\((.*)\)", fit["arguments"]["items"]["pattern"])[1].split("|"))
    template = (CHART / "templates" / "fits.yaml").read_text(encoding="utf-8")
    own = set(re.findall(r"^ +- (?:\{\{.*?\")?--([a-z-]+)", template, re.MULTILINE))
    assert own & given == set()
    assert own | given == options - {"help", ""}


def test_a_text_of_the_values_reaches_its_command_as_it_stands():
    """Whatever YAML or Kubernetes would read into it: an account's unit cut at a # would protect others for good."""
    odd = ["id #1", "a: b", "- x", 'say "x"', "back\\slash", "a$$b", "$(PGPASSWORD)", "$(JOB_NAME)"]
    secret = {"PGPASSWORD": "geheim", "JOB_NAME": "run-1"}
    values = [
        {
            "ledger": EXISTING
            | {"secrets": EXISTING["secrets"] | {"owner": "ledger-owner"}}
            | {"accounts": [{"name": "people", "epsilon": 1, "delta": 1e-6, "unit": text}]},
            "fits": {
                "people": PEOPLE
                | {"data": f"s3://{text}", "out": f"s3://{text}", "unit": text}
                | {"account": text.replace("$", "")}
                | {"scheduler": f"tcp://{text}", "arguments": [f"--target={text}"]}
            },
        }
        for text in odd
    ]
    for text, one in zip(odd, rendered(*values), strict=True):
        assert "error" not in one, (text, one)
        pods = [pod for thing in one["objects"] for _, pod in policy.pods(thing)]
        found = [
            expanded(a, secret)
            for p in pods
            for c in policy.containers(p)
            for a in c.get("args", [])
        ]
        as_is = text.replace("$(JOB_NAME)", "run-1")
        for name in ("--out=s3://", "--scheduler=tcp://", "--target=", "s3://"):
            assert f"{name}{as_is}" in found, (text, name, found)
        assert found.count(f"--unit={as_is}") == 2
        assert "--account=" + text.replace("$", "") in found


def test_pods_run_on_the_nodes_that_the_values_name(everything):
    pods = [pod for one in everything for _, pod in policy.pods(one)]
    assert len(pods) == 7
    assert {json.dumps(pod.get("nodeSelector")) for pod in pods} == {
        '{"kubernetes.io/arch": "amd64"}'
    }
    taint = {"key": "team", "operator": "Equal", "value": "privacy", "effect": "NoSchedule"}
    assert all(pod.get("tolerations") == [taint] for pod in pods)


def test_an_image_may_be_named_by_its_digest():
    digest, other = (f"sha256:{64 * digit}" for digit in "ab")
    (one,) = rendered({"image": {"digest": digest}, "notebookImage": {"digest": other}})
    pods = [pod for thing in one["objects"] for _, pod in policy.pods(thing)]
    assert {c["image"] for pod in pods for c in policy.containers(pod)} == {f"dpgb-dask@{digest}"}
    texts = {
        thing["metadata"]["name"]: thing["data"]["values.yaml"]
        for thing in one["objects"]
        if thing["kind"] == "ConfigMap"
    }
    assert f"dpgb-dask@{digest}" in texts["rel-dpgb-dask-for-gateway"]
    notebook = yaml.safe_load(texts["rel-dpgb-dask-for-hub"])["singleuser"]["image"]
    assert f"{notebook['name']}:{notebook['tag']}" == f"dpgb-dask-notebook@{other}"


def singleuser(objects):
    """What the chart gives the chart of JupyterHub for notebooks."""
    (text,) = [
        one["data"]["values.yaml"]
        for one in objects
        if one["metadata"]["name"].endswith("-for-hub")
    ]
    return yaml.safe_load(text)["singleuser"]


def reaches(notebook, port, labels, namespace=None):
    """Whether rules let a notebook to a port of pods with labels, in its own namespace or another."""

    def matches(selector, found):
        return selector.get("matchLabels", {}).items() <= found.items()

    def is_meant(one):
        where = one.get("namespaceSelector")
        there = {"kubernetes.io/metadata.name": namespace}
        near = namespace is None if where is None else matches(where, there)
        return near and matches(one["podSelector"], labels)

    return any(
        port in [one["port"] for one in rule["ports"]]
        and ("to" not in rule or any(map(is_meant, rule["to"])))
        for rule in notebook.get("networkPolicy", {}).get("egress", [])
    )


TRAEFIK = {"app.kubernetes.io/name": "dask-gateway", "app.kubernetes.io/component": "traefik"}


def test_notebooks_reach_gateway_and_ledger_and_are_told_where(charts):
    everything, plain = (singleuser(charts[f"{name}-values"]) for name in ("everything", "default"))
    for notebook in (everything, plain):
        assert reaches(notebook, 8000, TRAEFIK, "gateway")
        assert reaches(notebook, 8786, TRAEFIK, "gateway")
        assert reaches(notebook, 8000, {"component": "proxy"})
        assert not reaches(notebook, 8000, {"app": "other"}, "gateway")
        assert notebook["extraLabels"]["hub.jupyter.org/network-access-proxy-http"] == "true"
    assert reaches(everything, 6432, {"app": "other"}, "anywhere")
    assert not reaches(plain, 5432, {"app": "other"}, "anywhere")
    assert not reaches(everything, 8000, TRAEFIK, "elsewhere")
    assert everything["extraLabels"][policy.CLIENT] == "true"
    assert policy.CLIENT not in plain["extraLabels"]
    told = {name: v for name, v in everything["extraEnv"].items() if name.startswith("DASK_")}
    assert told == {
        "DASK_GATEWAY__ADDRESS": "http://proxy-public/services/dask-gateway",
        "DASK_GATEWAY__PROXY_ADDRESS": "gateway://traefik-gateway-dask-gateway.gateway:80",
        "DASK_GATEWAY__AUTH__TYPE": "jupyterhub",
    }
    assert not any(name.startswith("DASK_") for name in plain["extraEnv"])
    settings = ({"enabled": False}, {"enabled": False, "address": "http://gateway"})
    for one in rendered(*({"gateway": values} for values in settings)):
        alone = singleuser(one["objects"])
        assert not {"extraLabels", "networkPolicy"} & set(alone)
        assert not any(name.startswith("DASK_") for name in alone["extraEnv"])


@pytest.fixture(scope="module")
def clusters(everything):
    """What dask-gateway makes of choices of a user under the chart's cluster options."""
    choices = [
        {},
        {"worker_memory": "1.5 G", "worker_threads": 3, "kernels": "/cache/ada"},
        {"worker_memory": "1.5"},
        {"worker_memory": "99 G"},
        {"worker_threads": 99},
        {"scratch": "/cache/../etc"},
        {"image": "somebody/else:1"},
    ]
    return gateway_pods(everything, choices)


def test_dask_gateway_makes_restricted_pods_of_the_cluster_options(clusters, record_property):
    plain, chosen, *refused = clusters
    pods = [*plain["pods"], *chosen["pods"]]
    assert [text for pod in pods for text in policy.problems(pod)] == []
    (worker,) = chosen["pods"][1]["spec"]["containers"]
    assert worker["args"][:2] == ["dask", "worker"]
    assert worker["args"][-4:] == ["--nthreads", "3", "--memory-limit", str(3 * 2**29)]
    assert {"name": "XDG_CACHE_HOME", "value": "/cache/ada"} in worker["env"]
    for pod in pods:
        assert pod["spec"]["nodeSelector"] == {"pool": "workers"}
        assert {"key": "spot", "operator": "Exists"} in pod["spec"]["tolerations"]
    command = " ".join(plain["pods"][0]["spec"]["containers"][0]["args"])
    assert re.search(r"--dg-idle-timeout 900(\.0)?\b", command)
    assert not {"PGPASSWORD"} & {variable["name"] for variable in worker["env"]}
    assert policy.CLIENT not in chosen["pods"][1]["metadata"]["labels"]
    for one, name in zip(
        refused, ("worker_memory", "worker_memory", "99", "scratch", "image"), strict=True
    ):
        assert name in one["error"]
    record_property(
        "saw", f"{len(pods)} pods made by dask-gateway-server, {len(refused)} choices refused"
    )


def test_upgrades_from_released_charts_render(record_property):
    """With the values that a released chart took, and without a change of what Kubernetes holds fast."""
    assert RELEASED
    for path in RELEASED:
        released = json.loads(path.read_text(encoding="utf-8"))
        answers = rendered(*released["values"].values())
        for name, one in zip(released["values"], answers, strict=True):
            assert "error" not in one, (path.stem, name, one)
            now = record.immutable(one["objects"])
            assert released["immutable"][name] == {
                key: now[key] for key in released["immutable"][name]
            }
    record_property(
        "saw", f"values and fixed fields of released charts: {[p.stem for p in RELEASED]}"
    )


def test_values_that_an_earlier_chart_did_not_know_may_be_missing():
    """As with helm upgrade --reuse-values, which takes no defaults of the new chart."""
    for path in RELEASED:
        for text in json.loads(path.read_text(encoding="utf-8"))["values"].values():
            values = yaml.safe_load(text.replace("1e-6", "0.000001"))
            new = dict.fromkeys(("address", "proxyAddress", "auth", "namespace"))
            values["gateway"] = values.get("gateway", {}) | new
            with_defaults, without = rendered(text, values | {"heads": None})
            assert "error" not in without, without
            assert with_defaults["objects"] == without["objects"]


def test_a_change_of_what_is_fixed_is_noticed(tmp_path):
    changed = shutil.copytree(CHART, tmp_path / "dpgb-dask")
    template = changed / "templates" / "ledger.yaml"
    text = template.read_text(encoding="utf-8")
    template.write_text(
        text.replace("accessModes: [ReadWriteOnce]", "accessModes: [ReadWriteMany]")
    )
    released = json.loads(RELEASED[-1].read_text(encoding="utf-8"))
    name = "statefulset-values"
    (one,) = rendered(released["values"][name], chart=changed)
    assert record.immutable(one["objects"]) != released["immutable"][name]


def test_an_upgrade_of_the_chart_alone_leaves_the_server_alone(tmp_path):
    """Whatever changes in the template of its pod starts it anew."""
    newer = shutil.copytree(CHART, tmp_path / "dpgb-dask")
    text = (newer / "Chart.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^(version|appVersion): .*$", r"\1: 9.9.9", text, flags=re.MULTILINE)
    (newer / "Chart.yaml").write_text(text, encoding="utf-8")
    values = {"ledger": TEAM}
    before, after = (
        next(o for o in rendered(values, chart=chart)[0]["objects"] if o["kind"] == "StatefulSet")
        for chart in (CHART, newer)
    )
    assert after["metadata"]["labels"]["helm.sh/chart"] == "dpgb-dask-9.9.9"
    assert before["spec"] == after["spec"]
    chosen = after["spec"]["selector"]["matchLabels"]
    assert after["spec"]["template"]["metadata"]["labels"] == chosen


def test_no_claim_is_a_hook(charts):
    """Helm and Argo CD delete what a hook made before they make it again: here keys, journals and models."""
    claims = [
        one["metadata"]["annotations"]
        for objects in charts.values()
        for one in objects
        if one["kind"] == "PersistentVolumeClaim"
    ]
    assert len(claims) > 5
    assert not any(name.startswith("helm.sh/hook") for one in claims for name in one)


def test_accounts_that_cannot_be_as_asked_for_end_their_job(everything):
    """By whichever container, as each account has its own; what may heal is tried again."""
    (job,) = [one["spec"] for one in everything if one["kind"] == "Job"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"operator": "In", "values": [USAGE]}
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # Kubernetes asks for it
    assert job["backoffLimit"] > 1


def test_jobs_of_the_chart_are_made_anew_by_an_upgrade(everything):
    """The template of a Job is fixed; a hook that is deleted first can be changed."""
    jobs = [one["metadata"] for one in everything if one["kind"] in ("Job", "Pod")]
    assert len(jobs) == 2
    for metadata in jobs:
        assert metadata["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def test_a_released_chart_is_on_record():
    """The chart's version is raised by a release, and its record made by  python ci/chart/record.py."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    assert version in [path.stem for path in RELEASED]
