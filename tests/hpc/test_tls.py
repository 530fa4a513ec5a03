"""Connections with TLS, from certificate files: fits on worker processes have the same bits, and one charge each."""

import datetime
import subprocess
import sys

import pytest
from cluster.test_faults import disturbed, tell_charge
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from distributed import Client, LocalCluster, Security
from waiting import LONGEST

pytestmark = pytest.mark.hpc


def named(name):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def write_certificate(folder, name, signer=None):
    """Write NAME.pem and NAME.key; return the certificate's key and name, which can sign others."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    signing, issuer = signer or (key, name)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .sign(signing, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return key, name


@pytest.fixture
def certificates(tmp_path):
    """A folder with the certificates of an authority, a scheduler, a worker and a client, as an operator makes them."""
    folder = tmp_path / "certificates"
    folder.mkdir()
    authority = write_certificate(folder, "authority")
    for role in ("scheduler", "worker", "client"):
        write_certificate(folder, role, authority)
    return folder


@pytest.fixture
def workers(certificates):
    """A cluster whose two workers are processes that were given their certificate as files."""
    roles = {
        f"tls_{role}_{kind}": str(certificates / f"{role}.{ending}")
        for role in ("scheduler", "client")
        for kind, ending in (("cert", "pem"), ("key", "key"))
    }
    authority = str(certificates / "authority.pem")
    security = Security(tls_ca_file=authority, require_encryption=True, **roles)
    with LocalCluster(
        n_workers=0, protocol="tls://", security=security, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        command = [
            sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--nthreads", "1",
            "--host", "127.0.0.1", "--no-dashboard", "--no-nanny", "--local-directory", str(certificates.parent),
            "--tls-ca-file", authority, "--tls-cert", str(certificates / "worker.pem"),
            "--tls-key", str(certificates / "worker.key"),
        ]  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = [subprocess.Popen(command, **quiet) for _ in range(2)]
        try:
            yield cluster
        finally:
            for process in started:
                process.kill()
                process.wait()


def test_fits_with_certificate_files(workers, undisturbed, tmp_path, record_property):
    with Client(workers) as client:
        client.wait_for_workers(2, timeout=LONGEST)
        assert all(address.startswith("tls://") for address in client.nthreads())
        for recipe, backend in (("fdp-tr-newton", "tasks"), ("dp-ebm", "comms")):
            folder = tmp_path / backend
            folder.mkdir()
            disturbed(folder, recipe, backend)
            assert (folder / "model.json").read_bytes() == undisturbed(recipe)
            tell_charge(folder, f"{recipe} by {backend} over TLS from files", record_property)


def test_what_dask_says_to_a_client_without_a_certificate(workers, record_property):
    with pytest.raises(TypeError) as caught:  # before a fit, and so before a charge
        Client(workers.scheduler_address)
    record_property("saw", f"Dask's own: TypeError: {caught.value}")
