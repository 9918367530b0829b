"""The workflow of GitHub is one that it takes, and runs the commands of the README."""

import re

from tests.conftest import ROOT
from tests.deploy.tools import check

PATH = ROOT / ".github" / "workflows" / "ci.yml"


def test_it_runs_the_commands_of_the_readme():
    check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", PATH)
    workflow, readme = PATH.read_text(), (ROOT / "README.md").read_text()
    [commands] = re.findall(r"## Try it.*?```\n(.*?)```", readme, re.DOTALL)
    assert re.findall(r"^make \w+", commands, re.MULTILINE) == re.findall(r"run: (.*)", workflow)
    # What others wrote is named by its content.
    used = re.findall(r"uses: .*", workflow)
    assert used == re.findall(r"uses: .*@[0-9a-f]{40}  # v.*", workflow)
