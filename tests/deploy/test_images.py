"""What the images and the compose file are made of: valid, and as their linters like it."""

import re
from itertools import combinations

import pytest

from georesolve.service.settings import Settings
from tests.conftest import ROOT
from tests.deploy.tools import check, check_if_installed

COMPOSE = (ROOT / "docker-compose.yml").read_text()
PROFILES = sorted(set(re.findall(r"profiles: \[(.*)\]", COMPOSE)))
DCLINT = "dclint@3.1.0"


def test_dockerfile():
    check("hadolint", "Dockerfile", *(ROOT / "tests" / "containers").glob("*.Dockerfile"))


def test_images_that_are_not_ours_are_named_by_digest():
    dockerfile = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^ARG PYTHON_IMAGE=(.*)", dockerfile, re.MULTILINE)
    stages = re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE)
    built_on = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert {*built_on} <= {"${PYTHON_IMAGE}", *stages}
    images = re.findall(r"^    image: (?!georesolve-)(.*)", COMPOSE, re.MULTILINE)
    assert len(images) == 4
    for image in (*bases, *images):
        assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image), image


def test_the_locks_of_the_images_are_made_for_their_python():
    dockerfile = (ROOT / "Dockerfile").read_text()
    [python] = re.findall(r"^ARG PYTHON_IMAGE=python:([0-9.]+)-", dockerfile, re.MULTILINE)
    locks = re.findall(r"^COPY (requirements/\S+)", dockerfile, re.MULTILINE)
    assert len(locks) == 3
    for lock in locks:
        assert f"#    make lock, for Python {python}\n" in (ROOT / lock).read_text(), lock


def test_scripts():
    scripts = [path for name in ("deploy", "tests") for path in (ROOT / name).rglob("*.sh")]
    assert scripts
    check("shellcheck", *scripts)


def test_compose_file_has_the_schema():
    check("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")


def test_compose_file_has_the_style():
    command = ("exec", "--yes", DCLINT, "--", "--max-warnings", "0", "docker-compose.yml")
    check_if_installed("npm", *command, to_see=["--version"])


@pytest.mark.parametrize("n", range(len(PROFILES) + 1))
def test_compose_reads_every_profile(n):
    for chosen in combinations(PROFILES, n):
        flags = [f"--profile={profile}" for profile in chosen]
        command = ("compose", "--env-file", ".env.example", *flags, "config", "--quiet")
        check_if_installed("docker", *command, to_see=["compose", "version"])


def test_every_variable_of_the_compose_file_is_documented():
    used = set(re.findall(r"\$\{(\w+)", COMPOSE))
    documented = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    assert used <= documented
    own = {f"GEORESOLVE_{name.upper()}" for name in Settings.model_fields}
    assert documented - used <= own | {"COMPOSE_PROFILES"}, "variables that nothing reads"


def test_links_of_the_documentation_lead_somewhere():
    text = (ROOT / "deploy" / "README.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / "deploy" / link).exists()] == []
