"""docker-compose.yaml keeps to the specification, and to what is promised of its services."""

from __future__ import annotations

import copy
import importlib.resources
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from deploy.start import healthy
from sluice.etl import load_settings
from sluice.expectations.propose import propose_for_replication
from sluice.expectations.suite import REPLICATION
from sluice.expectations.suite_files import SuiteFolder, text_of
from sluice.pump_service.config import load
from tests.deploy import docker_file
from tests.deploy.compose_file import FILE, ROOT, defaults, document, filled, seconds, services

EVERYTHING = defaults() | {"COMPOSE_PROFILES": "standin,command"}
SERVICES = services(EVERYTHING)
ENDING = {"airflow-database", "bucket", "traffic", "cli"}
"""Those that do one thing and end."""
READS_A_SECTION = {"airflow-api", "airflow-dag-processor", "airflow-database", "spark-connect"}
"""Services that read [airflow] or [spark] of sluice.toml, and open no secret that others name."""
_IN_AN_IMAGE = ("deploy.start.", "sluice.")
"""An image has the wheel, whose one package is sluice, and deploy/start."""
each = pytest.mark.parametrize("name", SERVICES)


@pytest.fixture(scope="module")
def schema():
    """The specification's own, as the package check-jsonschema carries it."""
    folder = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    return json.loads((folder / "compose-spec.json").read_text())


def test_it_keeps_to_the_compose_specification(schema):
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(document(EVERYTHING))] == []
    for service, key, value in (
        ("pump-1", "stop_grace_perod", "1s"),
        ("pump-2", "depends_on", {"standin": {"condition": "service_ready"}}),
    ):
        wrong = copy.deepcopy(document(EVERYTHING))
        wrong["services"][service][key] = value
        assert not validator.is_valid(wrong), key


def test_every_variable_has_a_default_and_every_line_of_env_is_used():
    named = set(re.findall(r"\$\{(\w+)", FILE.read_text()))
    assert set(defaults()) - named == {"COMPOSE_PROFILES"}
    for name in named - set(defaults()):
        assert re.search(rf"\$\{{{name}:-", FILE.read_text()), name
    assert "$" not in json.dumps(document({}))
    assert filled("${A:+x}${A:-y}${B:-y}", {"A": "a"}) == "xay"


@each
def test_a_service_is_pinned_and_bounded_and_restarted_and_has_time_to_end(name):
    service = SERVICES[name]
    if "build" not in service:
        assert re.search(r":v?\d+\.\d+[.\w-]*(@sha256:[0-9a-f]{64})?$", service["image"]), service[
            "image"
        ]
    else:
        assert service["image"] == f"sluice-{service['build']['target']}:0.1.0"
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
    limits = service["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0 and re.fullmatch(r"\d+[gm]", limits["memory"])
    assert service["init"] is True
    assert "no-new-privileges:true" in service["security_opt"]
    assert seconds(service["stop_grace_period"]) >= 10
    assert ("healthcheck" in service) == (name not in ENDING)
    assert service["restart"] == {"cli": "no"}.get(
        name, "on-failure:5" if name in ENDING else "unless-stopped"
    )


@each
def test_a_service_waits_for_those_it_needs_to_be_healthy_or_done(name):
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        wanted = "service_completed_successfully" if needed in ENDING else "service_healthy"
        assert how["condition"] == wanted, needed
        elsewhere = SERVICES[needed].get("profiles") and not SERVICES[name].get("profiles")
        assert how.get("required", True) is not bool(elsewhere), needed


@each
def test_no_secret_is_in_the_environment_and_each_named_file_is_given(name):
    service = SERVICES[name]
    given = {f"/run/secrets/{secret}" for secret in service.get("secrets", [])}
    named = set()
    for key, value in service.get("environment", {}).items():
        named |= set(re.findall(r"/run/secrets/\w+", str(value)))
        secret = re.search(r"PASSWORD|SECRET|ACCESS_KEY|FERNET|TOKEN|SQL_ALCHEMY", key)
        assert not secret or re.search(r"(_FILE|_CMD)$", key), key
    files = {
        one["source"]: ROOT / document({})["configs"][one["source"]]["file"]
        for one in service.get("configs", [])
    }
    for file in files.values() if name not in READS_A_SECTION else ():
        named |= set(re.findall(r"/run/secrets/\w+", file.read_text()))
    assert named == given


def test_the_secrets_are_those_that_are_made_and_stay_on_a_second_time(tmp_path):
    made = tmp_path / "secrets"
    subprocess.run([ROOT / "deploy" / "make-secrets", made], check=True, capture_output=True)
    before = {path.name: path.read_text() for path in made.iterdir()}
    subprocess.run([ROOT / "deploy" / "make-secrets", made], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in made.iterdir()} == before
    declared = document({})["secrets"]
    assert (
        set(before) - {"spark_ca_key"}
        == set(declared)
        == {name for one in SERVICES.values() for name in one.get("secrets", [])}
    )
    assert {one["file"] for one in declared.values()} == {
        f"deploy/secrets/{name}" for name in declared
    }
    assert made.stat().st_mode & 0o777 == 0o700
    values = [
        value for name, value in before.items() if name not in ("airflow_database", "tidb_password")
    ]
    assert len(set(values)) == len(values) and min(map(len, values)) >= 16
    assert before["postgres_password"] in before["airflow_database"]
    assert "deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_quality_report_is_made_by_itself_from_a_suite_that_is_where_the_settings_look(
    monkeypatch,
):
    """The suite is about the replication itself: it fits whatever tables a TiDB has."""
    monkeypatch.setenv("SLUICE_TIDB_PASSWORD", "x")
    settings = load_settings(ROOT / "deploy" / "compose" / "sluice.toml")
    assert settings.quality.every_ms > 0
    folder = Path(settings.quality.suites)
    assert [suite.name for suite in SuiteFolder(folder).suites()] == [REPLICATION]
    assert (folder / "replication.toml").read_text() == text_of(propose_for_replication())
    declared = document({})["configs"]["quality_replication"]["file"]
    assert ROOT / declared == folder / "replication.toml"
    for name in ("airflow-scheduler", "airflow-api"):
        mounted = {one["source"]: Path(one["target"]) for one in SERVICES[name]["configs"]}
        assert (
            mounted["quality_replication"]
            == mounted["sluice_toml"].parent / "quality" / "replication.toml"
        )


def test_every_file_that_is_mounted_is_there_and_every_volume_is_used():
    declared = document({})
    assert {
        one["source"] for service in SERVICES.values() for one in service.get("configs", [])
    } == set(declared["configs"])
    for one in declared["configs"].values():
        assert (ROOT / one["file"]).is_file(), one
    mounted = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
    }
    assert {name for name in mounted if not name.startswith(".")} == set(declared["volumes"])
    for name in mounted - set(declared["volumes"]):
        assert (ROOT / name).exists(), name


@each
def test_what_our_images_are_told_to_start_is_there(name):
    service = SERVICES[name]
    if "build" not in service:
        return
    assert service["build"]["target"] in docker_file.TARGETS
    commands = [
        service["command"],
        service.get("healthcheck", {}).get("test", ["CMD"])[1:],
        service.get("entrypoint", []),
    ]
    for command in filter(None, commands):
        assert command[0] in ("python", "airflow", "sluice", "status"), command
        if command[:2] == ["python", "-m"]:
            assert command[2].startswith(_IN_AN_IMAGE), f"only a clone has {command[2]}"
            assert importlib.util.find_spec(command[2]), command
        if command[2:3] == ["deploy.start.healthy"]:
            assert command[3] in healthy.KINDS


def test_the_boards_and_their_prometheus_are_provisioned():
    source = yaml.safe_load((ROOT / "deploy/compose/grafana/datasource.yml").read_text())[
        "datasources"
    ][0]
    listens = next(word for word in SERVICES["prometheus"]["command"] if "listen-address" in word)
    assert source["url"] == f"http://prometheus:{listens.rpartition(':')[2]}"
    (provider,) = yaml.safe_load((ROOT / "deploy/compose/grafana/boards.yml").read_text())[
        "providers"
    ]
    assert f"./monitoring/boards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    assert len(list((ROOT / "monitoring" / "boards").glob("*.json"))) == 2


def test_the_alerts_find_the_jobs_that_they_ask_for():
    jobs = {
        one["job_name"]
        for one in yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())[
            "scrape_configs"
        ]
    }
    assert set(re.findall(r'job="(\w+)"', (ROOT / "monitoring" / "rules.yml").read_text())) <= jobs


def test_with_tls_pumps_and_all_that_read_them_have_the_certificates_of_tidbs_cluster(schema):
    added = yaml.safe_load((ROOT / "deploy" / "compose" / "tls.yaml").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(added)] == []
    readers = {
        name
        for name, one in SERVICES.items()
        if name.startswith("spark-worker")
        or name in ("airflow-api", "airflow-scheduler", "metrics", "cli", "prometheus")
    }
    pumps = {"pump-1", "pump-2"}
    assert set(added["services"]) == readers | pumps
    for name, one in added["services"].items():
        assert one["secrets"] == list(added["secrets"]), name
    for name in pumps:
        one = added["services"][name]
        config = load([], {**SERVICES[name]["environment"], **one["environment"]})
        assert config.security.on and config.security.ssl_ca
        assert {Path(value).name for value in one["environment"].values()} == set(one["secrets"])
        plain, secure = SERVICES[name]["healthcheck"]["test"], one["healthcheck"]["test"]
        assert secure == [word.replace("http:", "https:") for word in plain]
