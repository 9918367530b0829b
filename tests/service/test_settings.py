"""Settings: from secrets in files, from variables without a value; proxies that are believed."""

import os

import pytest
from pydantic import ValidationError

from georesolve.cli.serve import main
from georesolve.service import settings
from georesolve.service.settings import Settings
from tests.conftest import NO_CLUSTER, running_service


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    """A folder where a container would find its secrets."""
    monkeypatch.setattr(settings, "SECRETS", tmp_path)
    return tmp_path


def test_a_secret_is_read_from_its_file(secrets):
    (secrets / "georesolve_database_url").write_text("postgresql://a:b@c/d\n")
    (secrets / "proxy_key").write_text("of somebody else")
    assert Settings.gathered().database == "postgresql://a:b@c/d"
    assert "a:b" not in repr(Settings.gathered())


def test_what_the_service_starts_does_not_inherit_the_password(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "georesolve.service.server.serve",
        lambda given: seen.update(os.environ, url=given.database) or 0,
    )
    monkeypatch.setenv("GEORESOLVE_DATABASE_URL", "postgresql://a:b@c/d")
    assert main(["serve"]) == 0
    assert seen["url"] == "postgresql://a:b@c/d"
    assert "GEORESOLVE_DATABASE_URL" not in seen


def test_an_empty_secret_is_none(secrets):
    (secrets / "georesolve_database_url").touch()
    assert Settings.gathered().database is None


def test_flags_and_variables_come_before_secrets(secrets, monkeypatch):
    (secrets / "georesolve_port").write_text("1")
    assert Settings.gathered().port == 1
    monkeypatch.setenv("GEORESOLVE_PORT", "2")
    assert Settings.gathered().port == 2
    assert Settings.gathered(port="3").port == 3


def test_without_the_folder_there_are_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "SECRETS", tmp_path / "absent")
    assert Settings.gathered() == Settings()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("GEORESOLVE_RESULT_HOUR", "has no effect: is GEORESOLVE_RESULT_HOURS meant?\n"),
        ("georesolve_databse_url", "has no effect: is GEORESOLVE_DATABASE_URL meant?\n"),
        ("GEORESOLVE_COLOUR_OF_THE_SKY", "has no effect\n"),
    ],
)
def test_a_variable_that_is_no_setting_is_told(tmp_path, monkeypatch, capsys, name, told):
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("GEORESOLVE_TAG", "new")
    monkeypatch.setenv("GEORESOLVE_DATA_DIR", str(tmp_path / "none"))
    assert main(["keys", "list"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines(True) if "setting" in line]
    assert lines == [f"georesolve: {name} is no setting and {told}"]


def test_a_wrong_secret_is_told_as_a_wrong_flag(secrets, capsys):
    (secrets / "georesolve_port").write_text("70000")
    assert main(["serve"]) == 2
    assert "--port" in capsys.readouterr().err


def test_a_scheduler_is_named_once(capsys):
    assert main(["serve", "--scheduler", "tcp://a:1", "--scheduler-file", "b.json"]) == 2
    told = capsys.readouterr().err
    assert "tcp://a:1" in told
    assert "b.json" in told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--store", "s3://bucket"], "no prefix of a bucket"),
        (["--store", "/folder"], "no address"),
        (["--store", "s3://key:secret@bucket/x"], "no address"),
        (["--store", "https://host/x/"], "no prefix of a bucket"),
        (["--store", "s3://b-1/x", "--sinks", "s3://b-1/x/y/"], "sinks lists s3://b-1/x/y/"),
        (["--store", "s3://b-1/x/y", "--sources", "s3://b-1/x/"], "sources lists s3://b-1/x/"),
        (["--store", "s3://b-1/x", "--role", "front"], "database_url"),
    ],
)
def test_a_store_that_cannot_be_one_is_refused(capsys, flags, told):
    assert main(["serve", *flags]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["sources", "sinks"])
@pytest.mark.parametrize(
    "listed", ["", "data", "data/jobs", "to-all", "to-jobs", "data/new/folder"]
)
def test_no_prefix_covers_the_data_folder(tmp_path, setting, listed):
    """Nor lies in it, whichever of the two is reached by links, and before either is there."""
    (tmp_path / "data/jobs").mkdir(parents=True)
    (tmp_path / "to-all").symlink_to(tmp_path)
    (tmp_path / "to-jobs").symlink_to(tmp_path / "data/jobs")
    (tmp_path / "to-data").symlink_to(tmp_path / "data")
    given = {setting: f"s3://bucket/x/,file://{tmp_path}/{listed}"}
    for data_dir in ("data", "to-data", "to-all/data"):
        with pytest.raises(ValidationError, match=f"{setting} lists .*data_dir is .*/data/"):
            Settings(data_dir=tmp_path / data_dir, **given)


def test_a_prefix_beside_the_data_folder_is_taken(tmp_path, monkeypatch):
    beside = f"file://{tmp_path}/data-of-others/"
    monkeypatch.chdir(tmp_path)
    assert Settings(data_dir="data", sources=beside, sinks=beside).sources == beside
    with pytest.raises(ValidationError, match="sinks lists"):
        Settings(data_dir="data-of-others", sinks=beside)


def test_a_store_is_written_with_a_slash_at_its_end():
    assert Settings(store="s3://bucket/some/prefix").store == "s3://bucket/some/prefix/"
    assert Settings(store="s3://bucket/x", sinks="s3://bucket/xy/").store == "s3://bucket/x/"


def test_a_variable_without_a_value_is_not_set(monkeypatch):
    monkeypatch.setenv("GEORESOLVE_WORKERS", "")
    assert Settings().workers is None


def _own_address(client):
    headers = {"X-Forwarded-Proto": "https"}
    return client.get("/", headers=headers).json()["links"][0]["href"]


def test_links_have_the_scheme_that_a_proxy_tells(service):
    assert _own_address(service).startswith("https://")


def test_nobody_else_is_believed(tmp_path):
    flags = [*NO_CLUSTER, "--proxies", "192.0.2.0/24"]
    with running_service(tmp_path / "data", *flags, ready=False) as client:
        assert _own_address(client).startswith("http://")
