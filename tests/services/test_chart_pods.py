"""Commands and environments of the chart's pods, run as a kubelet would: in the image, with a real PostgreSQL."""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from base64 import b64decode
from contextlib import suppress
from hashlib import pbkdf2_hmac, sha256
from hmac import digest
from pathlib import Path

import dask.config
import pytest
from charts import SETS, gateway_pods, policy, rendered
from kubelet import IMAGE, Kubelet, with_postgres
from sqlalchemy.engine import make_url

from dpgb_dask import DPGBClassifier, Ledger

psycopg = pytest.importorskip("psycopg", reason="NO PSYCOPG: pip install '.[services]'")
pytestmark = pytest.mark.services

ROLES_SCRIPT = Path(__file__).parents[2] / "helm/dpgb-dask/files/roles.sh"
ROLES = ("owner", "analyst", "auditor")
# with all signs that a shell, SQL or a kubelet could take for its own
PASSWORDS = {
    role: {"password": f'it\'s $(PATH) ${role}\\ "{secrets.token_hex(8)}"'}
    for role in (*ROLES, "superuser")
}
RESOURCES = {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 1, "memory": "2Gi"}}


@pytest.fixture(scope="module")
def server():
    """The address of a superuser of PostgreSQL, in a new database for the ledger."""
    url = os.environ.get("DPGB_POSTGRES")
    if url is None:
        pytest.skip("NO POSTGRESQL: run ci/chart/check")
    url = make_url(url)
    name = f"ledger_{secrets.token_hex(4)}"
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield url.set(database=name)
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        for role in ROLES:
            connection.execute(f"DROP ROLE IF EXISTS {name}_{role}")


def plain(url):
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def values(server, binary_schema, tmp_path_factory):
    """Values of a team whose server is on this machine."""
    schema = tmp_path_factory.mktemp("schema") / "schema.json"
    binary_schema.save(schema)
    fit = {
        "data": "/data/people.csv",
        "dataClaim": "data",
        "schema": schema.read_text(encoding="utf-8"),
        "epsilon": 0.5,
        "delta": 1e-6,
        "account": "people",
        "threads": 1,
        "memoryLimit": "1GiB",
        "resources": RESOURCES,
    }
    ledger = {
        "mode": "existing",
        "host": server.host,
        "port": server.port,
        "database": server.database,
        "tls": {"mode": "disable"},
        "roles": {role: f"{server.database}_{role}" for role in ROLES},
        "secrets": {role: role for role in PASSWORDS},
        "accounts": [{"name": n, "epsilon": 0.6, "delta": 1e-6} for n in ("people", "others")],
    }
    return {"ledger": ledger, "fits": {"people": fit}}


@pytest.fixture(scope="module")
def objects(values, server):
    """What the chart renders for them, and for the same team with a server of the chart's own, by name."""
    own = values | {"ledger": values["ledger"] | {"mode": "statefulset"}}
    existing, statefulset = rendered(values, own)
    assert "error" not in existing | statefulset, (existing, statefulset)
    text = json.dumps([*statefulset["objects"], *existing["objects"]])
    return {
        f"{one['kind']}/{one['metadata']['name'].removeprefix('rel-dpgb-dask-')}": one
        for one in json.loads(text.replace("rel-dpgb-dask-ledger.space.svc", server.host))  # as DNS
    }


@pytest.fixture(scope="module")
def kubelet(objects, features, labels, tmp_path_factory):
    maps = {one["metadata"]["name"]: one["data"] for one in objects.values() if "data" in one}
    kubelet = Kubelet(tmp_path_factory.mktemp("node"), PASSWORDS, maps)
    people = features.assign(target=labels)
    people.to_csv(kubelet.claim("data") / "people.csv", index=False)
    return kubelet


def pod_of(thing):
    ((_, pod),) = policy.pods(thing)
    return pod


def run(kubelet, thing, job=""):
    """Run all containers of a pod, one after the other; return the last one's end."""
    pod = pod_of(thing)
    for container in policy.containers(pod):
        done = kubelet.run(pod, container, job)
        assert not any(one["password"] in done.stdout + done.stderr for one in PASSWORDS.values())
        if done.returncode:
            break
    return done


@pytest.fixture(scope="module")
def team(kubelet, objects, server):
    """The ledger with its roles and its account, as the chart makes them."""
    pod = pod_of(objects["StatefulSet/ledger"])
    values = kubelet.environment(pod["containers"][0]) | {
        "POSTGRES_USER": server.username,  # on this server the superuser has another name
        "PGHOST": server.host,
        "PGPORT": str(server.port),
        "PATH": with_postgres()["PATH"],
    }
    script = objects["ConfigMap/ledger"]["data"]["roles.sh"]
    subprocess.run(["sh", "-eu", "-c", script], env=values, check=True)
    for _ in range(2):  # an upgrade runs it again
        done = run(kubelet, objects["Job/accounts"])
        assert done.returncode == 0, done.stderr
    assert "people: cap epsilon=0.6, delta=1e-06" in done.stdout
    return Ledger(server.render_as_string(hide_password=False))


@pytest.mark.parametrize("setting", ["log_statement", "log_min_duration_statement"])
def test_no_password_is_in_the_servers_log(server, setting):
    """Neither where a role is there already, nor where the server logs every statement."""
    with psycopg.connect(plain(server), autocommit=True) as connection:
        log = Path(connection.execute("SHOW data_directory").fetchone()[0]).with_name("log")
        if not os.access(log, os.R_OK):
            pytest.skip("NO LOG of the server: run ci/chart/check")
        value = {"log_statement": "'all'", "log_min_duration_statement": "0"}[setting]
        connection.execute(f"ALTER DATABASE {server.database} SET {setting} = {value}")
        word = secrets.token_hex(8)
        values = with_postgres() | {
            "POSTGRES_USER": server.username,
            "POSTGRES_DB": server.database,
            "PGHOST": server.host,
            "PGPORT": str(server.port),
            **{f"{role.upper()}_ROLE": server.username for role in ROLES},
            **{f"{role.upper()}_PASSWORD": word for role in ROLES},
        }
        done = subprocess.run(
            ["sh", "-eu", ROLES_SCRIPT], env=values, check=False, capture_output=True, text=True
        )
        connection.execute(f"ALTER DATABASE {server.database} RESET {setting}")
    assert "already exists" in done.stderr
    said = log.read_text(encoding="utf-8")
    assert "already exists" in said
    assert word not in said + done.stderr


@pytest.mark.usefixtures("team")
def test_another_cap_ends_the_job_of_accounts_and_a_server_that_is_not_up_does_not(
    kubelet, objects, server, record_property
):
    job = objects["Job/accounts"]
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    for old, new in (("--epsilon=0.6", "--epsilon=0.7"), ("--delta=1e-06", "--delta=1")):
        changed = json.loads(json.dumps(job).replace(old, new))
        done = run(kubelet, changed)
        assert done.returncode in rule["onExitCodes"]["values"], done.stderr
        record_property("saw", f"{new}: exit code 2, {done.stderr.splitlines()[0]!r}")
    away = json.loads(json.dumps(job).replace(f":{server.port}/", ":1/"))
    assert run(kubelet, away).returncode == 1


STARTING = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0"  # of a recovery, too


def answering(listener, answer):
    """Give every caller this answer."""
    with suppress(OSError):  # closed
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"E" + (len(answer) + 4).to_bytes(4) + answer)


def test_probes_leave_a_server_alone_that_is_starting_and_end_one_that_hangs(objects, server):
    container = pod_of(objects["StatefulSet/ledger"])["containers"][0]

    def passes(port):
        plain = {"PGSSLMODE": "disable", "PGGSSENCMODE": "disable"}  # no question before the first
        environment = {"PATH": with_postgres()["PATH"], "PGPORT": str(port), **plain}
        return {
            kind: subprocess.run(
                container[f"{kind}Probe"]["exec"]["command"], env=environment, check=False
            ).returncode
            == 0
            for kind in ("readiness", "liveness")
        }

    assert passes(server.port) == {"readiness": True, "liveness": True}
    with socket.socket() as other:
        other.bind((server.host, 0))
        port = other.getsockname()[1]
        assert passes(port) == {"readiness": False, "liveness": False}
        other.listen()
        threading.Thread(target=answering, args=(other, STARTING), daemon=True).start()
        assert passes(port) == {"readiness": False, "liveness": True}


@pytest.mark.usefixtures("team")
def test_passwords_of_roles_are_those_of_their_secrets(server):
    with psycopg.connect(plain(server)) as connection:
        for role in ROLES:
            name = f"{server.database}_{role}"
            row = connection.execute(
                "SELECT rolpassword, rolsuper OR rolcreaterole OR rolcreatedb FROM pg_authid WHERE rolname = %s",
                (name,),
            ).fetchone()
            verifier, rights = row
            _, salted, keys = verifier.split("$")
            rounds, salt = salted.split(":")
            word = PASSWORDS[role]["password"].encode()
            key = digest(
                pbkdf2_hmac("sha256", word, b64decode(salt), int(rounds)), b"Client Key", "sha256"
            )
            assert sha256(key).digest() == b64decode(keys.split(":")[0])
            assert not rights


def test_a_job_is_charged_once_however_often_its_pod_is_killed(
    team, kubelet, objects, record_property
):
    fit = objects["CronJob/fit-people"]
    pod = pod_of(fit)
    models = kubelet.claim("rel-dpgb-dask-models")
    said = kubelet.run_and_kill(pod, pod["containers"][0], "is charged", "people-1")
    assert "is charged" in said, said
    (begun,) = team.fits("people")
    assert begun.state == "RESERVED"
    done = run(kubelet, fit, "people-1")
    assert done.returncode == 0, done.stderr
    (ended,) = team.fits("people")
    assert (ended.fit_id, ended.state, ended.charge) == (begun.fit_id, "RELEASED", begun.charge)
    model = (models / "people-people-1.json").read_bytes()
    assert run(kubelet, fit, "people-1").returncode == 0  # as if it was killed at the very end
    assert (models / "people-people-1.json").read_bytes() == model
    assert DPGBClassifier.load(models / "people-people-1.json").fit_id_ == ended.fit_id
    rules = fit["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    # another Job is another fit, for which too little is left: an exit code that ends the Job
    assert run(kubelet, fit, "people-2").returncode == 3
    assert len(team.fits("people")) == 1
    assert {2, 3, 4} == set(rules[0]["onExitCodes"]["values"])
    record_property(
        "saw",
        f"commands in {'the image' if IMAGE else 'NO IMAGE, this environment'}: one Job, its pod killed and run again"
        " twice: 1 charge, same bytes; the next Job has too little budget: exit code 3",
    )


def test_a_job_charges_no_second_fit_whatever_became_of_its_first(
    team, kubelet, objects, record_property
):
    """Its folder tells: the fit was settled, or the Job of this name is another's."""
    theirs = objects["CronJob/fit-people"]
    ours = json.loads(json.dumps(theirs).replace("--account=people", "--account=others"))
    pod = pod_of(ours)
    said = kubelet.run_and_kill(pod, pod["containers"][0], "is charged", "others-1")
    (begun,) = team.fits("others")
    assert begun.state == "RESERVED", said
    charged = [len(team.fits(name)) for name in ("people", "others")]
    done = run(kubelet, theirs, "others-1")
    assert done.returncode == 2
    assert f"{begun.fit_id} (unfinished, account 'others')" in done.stderr
    team.settle(begun.fit_id)
    done = run(kubelet, ours, "others-1")
    assert done.returncode == 2
    assert f"{begun.fit_id} (settled, account 'others')" in done.stderr
    assert [len(team.fits(name)) for name in ("people", "others")] == charged
    record_property("saw", f"a settled fit's Job: {done.stderr.splitlines()[0]!r}, exit code 2")


def test_the_auditor_verifies_and_notices_an_older_dump(
    team, kubelet, objects, server, record_property
):
    verify, backup = objects["CronJob/verify"], objects["CronJob/backup"]
    done = run(kubelet, backup)
    assert done.returncode == 0, done.stderr
    (dump,) = kubelet.claim("rel-dpgb-dask-backup").glob("*.dump")
    # what a fit that begins after the dump adds, as the owner; then the auditor looks
    team.open_account("later", epsilon=1, delta=1e-6)
    for _ in range(2):
        done = run(kubelet, verify)
        assert done.returncode == 0, done.stderr
    restore = ["pg_restore", "--clean", "--if-exists", "--single-transaction", "-d", plain(server)]
    subprocess.run([*restore, dump], env=with_postgres(), check=True)
    done = run(kubelet, verify)
    assert done.returncode == 1
    team.restore()  # the owner's word holds for the folder where it was given: docs/ledger.md says the way out
    assert run(kubelet, verify).returncode == 1
    (head,) = kubelet.claim("rel-dpgb-dask-auditor").glob("dpgb_dask/ledger-*/head")
    head.unlink()
    assert run(kubelet, verify).returncode == 0
    record_property(
        "saw",
        f"dump of {dump.stat().st_size} bytes; restored: verify says {done.stderr.split(chr(10))[0]!r}",
    )


@pytest.mark.usefixtures("team")
def test_old_dumps_go_and_half_ones_are_never_taken_for_whole(kubelet, objects):
    folder = kubelet.claim("rel-dpgb-dask-backup")
    backup = objects["CronJob/backup"]
    old = [
        folder / f"ledger-{name}"
        for name in ("20260101T000000Z.dump", "20260102T000000Z.dump.part")
    ]
    for path in old:
        path.touch()
        os.utime(path, (0, 0))
    container = pod_of(backup)["containers"][0]
    wrong = next(one for one in container["env"] if one["name"] == "PGDATABASE")
    wrong["value"], right = "no_such_database", wrong["value"]
    known = set(folder.iterdir())
    assert run(kubelet, backup).returncode != 0
    assert {path for path in folder.glob("*.dump")} <= known
    assert all(path.exists() for path in old)
    wrong["value"] = right
    assert run(kubelet, backup).returncode == 0
    assert not any(path.exists() for path in old)


@pytest.mark.usefixtures("team")
def test_helm_test_passes(kubelet, objects):
    assert pod_of(objects["Pod/test"])["containers"][0]["args"][0].startswith("postgresql")
    (default,) = rendered(SETS["default-values"])
    (pod,) = [one for one in default["objects"] if one["kind"] == "Pod"]
    done = run(kubelet, pod)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


READ_BY_OTHERS = {"TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "OMP_NUM_THREADS"}


def test_every_environment_variable_is_read_by_something(objects):
    """By the library or Dask (configuration), by libpq, by the image's tools, or by the command line itself."""
    libpq = {one.envvar.decode() for one in psycopg.pq.Conninfo.get_defaults() if one.envvar}
    checked = set()
    for thing in objects.values():
        for _, pod in policy.pods(thing):
            for one in policy.containers(pod):
                text = json.dumps(
                    one.get("command", []) + one.get("args", []) + one["volumeMounts"]
                )
                for variable in one.get("env", []):
                    name = variable["name"]
                    used = f"$({name})" in text or f"${name}" in text or f'"${name}' in text
                    scripts = objects["ConfigMap/ledger"]["data"]["roles.sh"]
                    postgres = name.startswith("POSTGRES_") or name == "PGDATA" or name in scripts
                    ours = "dpgb-dask:" in one["image"]
                    if name.startswith("DASK_DPGB_DASK__"):
                        code = "from dpgb_dask.training.config import execution as e; print(e())"
                        values = {**os.environ, name: str(variable["value"])}
                        subprocess.run([sys.executable, "-P", "-c", code], env=values, check=True)
                    elif name.startswith("DASK_"):
                        key = name.removeprefix("DASK_").lower().replace("__", ".")
                        assert dask.config.get(key, default=None) is not None or "temporary" in key
                    else:
                        assert used or name in libpq | READ_BY_OTHERS or (postgres and not ours), (
                            name
                        )
                    checked.add(name)
    assert {"PGPASSWORD", "JOB_NAME", "DASK_DPGB_DASK__N_THREADS", "OWNER_PASSWORD"} <= checked


@pytest.mark.skipif(not IMAGE, reason="NO IMAGE: ci/image/build makes it, DPGB_IMAGE names it")
def test_the_image_knows_the_commands_of_a_gateway(kubelet, objects):
    """Each option that dask-gateway gives to scheduler and workers is one of theirs, preloads included."""
    (made,) = gateway_pods(objects.values(), [{}])
    for pod in made["pods"]:
        (container,) = pod["spec"]["containers"]
        words = container["args"]
        plain = {"image": container["image"], "volumeMounts": container["volumeMounts"][1:]}
        pod["spec"]["volumes"] = pod["spec"]["volumes"][1:]  # without credentials
        done = kubelet.run(pod["spec"], plain | {"command": [*words[:2], "--help"]})
        assert done.returncode == 0, done.stderr
        # the preload's own, --dg-…, are read by it
        for option in [word for word in words if word.startswith("--") and "--dg-" not in word]:
            assert option in done.stdout, option
        if "--preload" in words:
            code = f"import {words[words.index('--preload') + 1]} as m; print(m.dask_setup.params)"
            done = kubelet.run(pod["spec"], plain | {"command": ["python", "-c", code]})
            assert done.returncode == 0, done.stderr
            for option in [word for word in words if "--dg-" in word]:
                assert option.removeprefix("--").replace("-", "_") in done.stdout
