"""The manifests for Kubernetes: valid, strict about what pods may do, the same in both variants."""

import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VARIANTS = ("plain", "operator")
VERSIONS = ("1.30", "1.34")
"""Of Kubernetes: an old one that is still in use, and a recent one."""
OF_OTHERS = ("Kustomization", "DaskCluster")


def manifests(*paths):
    return [one for path in paths for one in yaml.safe_load_all(path.read_text())]


def everything():
    return manifests(*FOLDER.rglob("*.yaml"))


def pods(found):
    """The pods that manifests ask for, as pods."""
    specs = []
    for one in found:
        if one["kind"] in ("Deployment", "Job"):
            specs.append((one["metadata"]["name"], one["spec"]["template"]["spec"]))
        if one["kind"] == "DaskCluster":
            for component in ("scheduler", "worker"):
                name = f"{one['metadata']['name']}-{component}"
                specs.append((name, one["spec"][component]["spec"]))
    return {
        name: {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        for name, spec in specs
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_valid(version):
    known = [one for one in everything() if one["kind"] not in OF_OTHERS]
    assert known
    for one in (*known, *pods(everything()).values()):
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("variant", [*VARIANTS, "bucket"])
def test_kustomize_builds(variant):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    command = ["kubectl", "kustomize", FOLDER / variant]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert {"georesolve-api", "georesolve-scheduler", "georesolve-worker"} <= set(pods(built))
    shares_a_volume = "PersistentVolumeClaim" in {one["kind"] for one in built}
    assert shares_a_volume == ("claimName: data" in done.stdout) == (variant != "bucket")
    for one in built:
        if one["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(one, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("kustomization.yaml")), ids=str)
def test_what_a_kustomization_names_is_there(path):
    [found] = manifests(path)
    for name in found["resources"]:
        assert (path.parent / name).exists()


def test_pods_may_do_little():
    for name, pod in pods(everything()).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


def test_no_variables_of_services_are_taken_for_settings():
    for name, pod in pods(everything()).items():
        assert pod["spec"]["enableServiceLinks"] is False, name


def test_both_variants_run_the_same_pods():
    plain, operator = (pods(manifests(*(FOLDER / name).glob("*.yaml"))) for name in VARIANTS)
    # Only the operator looks for a worker by the name that it gave it.
    [worker] = operator["georesolve-worker"]["spec"]["containers"]
    worker["args"].remove("--name=$(DASK_WORKER_NAME)")
    assert operator == plain
    assert set(plain) == {"georesolve-scheduler", "georesolve-worker"}


def test_what_dask_says_is_encrypted():
    running = pods(everything())
    for name in ("georesolve-api", "georesolve-scheduler", "georesolve-worker"):
        text = yaml.safe_dump(running[name])
        assert "tls://" in text
        assert "tcp://" not in text
        assert "dask-tls" in text
