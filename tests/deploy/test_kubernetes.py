"""Manifests under deploy/kubernetes are consistent and start what docker-compose.yaml starts."""

from __future__ import annotations

import copy
import json
import os
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.start import healthy
from sluice.cli.spark import command as spark_commands
from sluice.etl.settings import parse_settings
from sluice.etl.spark.launch import spark_home
from sluice.etl.spark.persistent_worker_task import IDLE_TIMEOUT_S
from sluice.pump_service.config import Config, load
from tests.deploy.compose_file import ROOT, defaults, seconds, services
from tests.deploy.docker_file import TARGETS, stages

FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS = [
    one
    for file in KUSTOMIZATION["resources"]
    for one in yaml.safe_load_all((FOLDER / file).read_text())
]
WORKLOADS = {
    one["metadata"]["name"]: one for one in OBJECTS if one["kind"] in ("Deployment", "StatefulSet")
}
VALUES = yaml.safe_load((FOLDER / "values-airflow.yaml").read_text())
COMPOSE = {
    "pump": "pump-1",
    "spark-master": "spark-master",
    "spark-worker": "spark-worker-1",
    "spark-connect": "spark-connect",
    "metrics": "metrics",
    "pages": "pages",
}
"""Which service of docker-compose.yaml each is."""
each = pytest.mark.parametrize("name", WORKLOADS)
RELEASES = ("1.27", "1.37")
"""Of Kubernetes: the first that keeps a pump's disk when its set is made smaller without being
asked to, and the last whose schemas are at hand.
"""


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == kind}


def pod(name: str) -> dict[str, Any]:
    return WORKLOADS[name]["spec"]["template"]["spec"]


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["containers"]
    return only


@pytest.mark.quick_cases(RELEASES[-1])
@pytest.mark.parametrize("release", RELEASES)
def test_every_object_keeps_to_kubernetes_own_schemas(release):
    for one in OBJECTS:
        kubernetes_validate.validate(one, release, strict=True)
    wrong = copy.deepcopy(of_kind("StatefulSet")["pump"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="periodSecond"):
        kubernetes_validate.validate(wrong, release, strict=True)


def test_every_file_belongs_to_something():
    listed = {*KUSTOMIZATION["resources"], "kustomization.yaml", "values-airflow.yaml"}
    listed |= {file for one in KUSTOMIZATION["configMapGenerator"] for file in one.get("files", [])}
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == listed
    assert set(WORKLOADS) == set(COMPOSE)


@each
def test_selectors_find_their_own_pods_and_nobody_elses(name):
    spec = WORKLOADS[name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    others = [
        one["spec"]["template"]["metadata"]["labels"]
        for key, one in WORKLOADS.items()
        if key != name
    ]
    assert labels not in others
    service = of_kind("Service").get(spec.get("serviceName", name))
    assert service or name == "spark-worker"
    if service:
        assert service["spec"]["selector"] == labels
        here = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
        assert {one["targetPort"]: one["port"] for one in service["spec"]["ports"]} == here


@each
def test_a_pod_starts_what_compose_starts_has_its_time_to_end_and_is_not_root(name):
    service = services(defaults())[COMPOSE[name]]
    said = container(name)
    assert said["args"] == service["command"]
    assert "command" not in said  # the image's entry point reads the secrets
    assert said["image"] == service["image"].partition(":")[0]
    assert pod(name)["terminationGracePeriodSeconds"] >= seconds(service["stop_grace_period"])
    assert pod(name)["securityContext"]["runAsNonRoot"] is True
    assert stages()[service["build"]["target"]].last("USER").split(":") == [
        str(pod(name)["securityContext"][key]) for key in ("runAsUser", "runAsGroup")
    ]
    assert said["securityContext"]["readOnlyRootFilesystem"] is True
    assert said["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert set(said["resources"]) == {"requests", "limits"}
    assert {mount["name"] for mount in said["volumeMounts"]} == {
        one["name"] for one in pod(name).get("volumes", [])
    } | {
        claim["metadata"]["name"]
        for claim in WORKLOADS[name]["spec"].get("volumeClaimTemplates", [])
    }
    # what compose sets is set, but what differs from machine to machine
    given = {variable["name"] for variable in said["env"]}
    assert set(service.get("environment", {})) <= given


@each
def test_probes_ask_what_compose_asks_and_liveness_asks_nobody_else(name):
    said = container(name)
    test = services(defaults())[COMPOSE[name]]["healthcheck"]["test"][1:]
    for probe in ("startupProbe", "readinessProbe"):
        command = said[probe]["exec"]["command"]
        assert command[:4] == test[:4]
        assert command[3] in healthy.KINDS
        assert command[4].rpartition(":")[2] == test[4].rpartition(":")[2]  # port and path
        assert said[probe]["timeoutSeconds"] >= 10
    live = said["livenessProbe"]
    ports = {port["name"] for port in said["ports"]}
    assert (live.get("httpGet") or live.get("tcpSocket"))["port"] in ports
    assert live["periodSeconds"] * live["failureThreshold"] >= 60


def test_one_pump_at_a_time_is_taken_away_each_on_a_node_and_with_a_disk_of_its_own():
    pump = WORKLOADS["pump"]["spec"]
    budget = of_kind("PodDisruptionBudget")["pump"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == pump["selector"]
    (apart,) = pod("pump")["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["labelSelector"] == pump["selector"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    (claim,) = pump["volumeClaimTemplates"]
    mounts = {one["name"]: one["mountPath"] for one in container("pump")["volumeMounts"]}
    variables = {one["name"]: one.get("value", "") for one in container("pump")["env"]}
    assert variables["PUMP_DATA_DIR"].startswith(mounts[claim["metadata"]["name"]] + "/")
    assert pump["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    service = of_kind("Service")[pump["serviceName"]]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True  # one that pauses is still read
    assert (
        variables["PUMP_ADVERTISE_ADDR"]
        == f"$(POD_NAME).{pump['serviceName']}.$(POD_NAMESPACE):8250"
    )
    assert pump["replicas"] >= 2
    # Kubernetes would set PUMP_PORT and PUMP_SERVICE_HOST, which a pump doesn't know
    assert pod("pump")["enableServiceLinks"] is False


def test_settings_are_read_and_what_they_name_is_mounted():
    for file in (FOLDER / "sluice.toml", ROOT / "deploy" / "compose" / "sluice.toml"):
        settings = parse_settings(tomllib.loads(file.read_text()))
        assert settings.spark.remote == "sc://spark-connect:15002"
    document = tomllib.loads((FOLDER / "sluice.toml").read_text())
    folder = str(Path(document["downstream"]["password-file"]).parent)
    tasks = VALUES["volumeMounts"] + VALUES["scheduler"]["extraVolumeMounts"]
    for mounts in (container("metrics")["volumeMounts"], tasks):
        assert folder in {one["mountPath"] for one in mounts}
        assert "/etc/sluice/sluice.toml" in {one["mountPath"] for one in mounts}
    made = KUSTOMIZATION["configMapGenerator"]
    literals = dict(text.split("=", 1) for one in made for text in one.get("literals", []))
    assert literals["pd-urls"] == document["upstream"]["pd-urls"]
    generated = {one["name"] for one in made}
    asked = {
        one["configMap"]["name"]
        for name in WORKLOADS
        for one in pod(name)["volumes"]
        if "configMap" in one
    }
    asked |= {one["configMap"]["name"] for one in VALUES["volumes"] if "configMap" in one}
    assert asked | {"pump"} == generated


def test_only_what_reaches_the_pipelines_places_has_its_secrets():
    assert [one["name"] for one in VALUES["volumes"]] == ["sluice-settings"]
    assert VALUES["triggerer"]["extraVolumes"] == VALUES["scheduler"]["extraVolumes"]
    (secret,) = VALUES["apiServer"]["extraVolumes"]
    assert [item["key"] for item in secret["secret"]["items"]] == ["pages_connection"]
    assert "extraVolumes" not in VALUES["dagProcessor"]


@pytest.mark.quick_cases(RELEASES[-1])
@pytest.mark.parametrize("release", RELEASES)
def test_the_service_that_replicates_has_a_standby_on_another_node(release):
    folder = FOLDER / "replication-service"
    (file,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    deployment = yaml.safe_load((folder / file).read_text())
    kubernetes_validate.validate(deployment, release, strict=True)
    template = deployment["spec"]["template"]
    assert deployment["spec"]["replicas"] == 2
    (spread,) = template["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == template["metadata"]["labels"]
    (said,) = template["spec"]["containers"]
    assert said["args"][:2] == ["sluice", "replicate"]
    metrics = {variable["name"] for variable in container("metrics")["env"]}
    assert {variable["name"] for variable in said["env"]} == metrics


def test_the_scheduler_is_started_as_in_compose():
    assert VALUES["scheduler"]["args"] == services(defaults())["airflow-scheduler"]["command"]


def test_images_are_those_of_the_dockerfile_in_one_version():
    tags = {one["newTag"] for one in KUSTOMIZATION["images"]} | {VALUES["defaultAirflowTag"]}
    assert len(tags) == 1
    targets = {one["name"].removeprefix("sluice-") for one in KUSTOMIZATION["images"]}
    assert targets == {container(name)["image"].removeprefix("sluice-") for name in WORKLOADS}
    assert targets <= set(TARGETS)
    assert VALUES["defaultAirflowRepository"] == "sluice-airflow"
    assert f"{VALUES['uid']}:{VALUES['gid']}" == stages()["airflow"].last("USER")


def test_prometheus_operator_is_told_of_services_and_ports_that_are_there():
    component = yaml.safe_load((FOLDER / "service-monitor" / "kustomization.yaml").read_text())
    monitors = [
        one for file in component["resources"]
        for one in yaml.safe_load_all((FOLDER / "service-monitor" / file).read_text())
    ]  # fmt: skip
    assert {one["metadata"]["name"] for one in monitors} == {"pump", "sluice"}
    for one in monitors:
        wanted = one["spec"]["selector"]["matchLabels"]
        (service,) = [
            each for each in of_kind("Service").values() if each["metadata"]["labels"] == wanted
        ]
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in one["spec"]["endpoints"]} <= ports


def test_no_pod_may_do_more_than_the_restricted_standard_allows():
    (namespace,) = of_kind("Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_with_tls_a_pump_shows_a_certificate_and_is_probed_with_it():
    folder = FOLDER / "pump-tls"
    (patch,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
    assert patch["target"] == {"kind": "StatefulSet", "name": "pump"}
    plain = WORKLOADS["pump"]
    secure = copy.deepcopy(plain)
    for step in yaml.safe_load((folder / patch["path"]).read_text()):
        _patched(secure, step)
    for release in RELEASES:
        kubernetes_validate.validate(secure, release, strict=True)
    (said,) = secure["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one.get("value", "") for one in said["env"]}
    config = load([], given | {"PUMP_PD_URLS": "https://basic-pd.tidb:2379"})
    assert config.security.on and config.security.ssl_ca
    (mount,) = (one for one in said["volumeMounts"] if one["name"] == "tls")
    for name in ("PUMP_SSL_CA", "PUMP_SSL_CERT", "PUMP_SSL_KEY"):
        assert Path(given[name]).parent == Path(mount["mountPath"])
    for probe in ("startupProbe", "readinessProbe"):
        before = container("pump")[probe]["exec"]["command"]
        asked = said[probe]["exec"]["command"]
        assert asked == [word.replace("http:", "https:") for word in before] != before
    assert "httpGet" not in said["livenessProbe"]


PODS = FOLDER / "spark-on-kubernetes"


def executor_pod() -> dict[str, Any]:
    """The pod of an executor as Spark completes its template (BasicExecutorFeatureStep)."""
    pod = yaml.safe_load((PODS / "executor.yaml").read_text())
    (said,) = pod["spec"]["containers"]
    said["image"] = "registry.example.com/sluice-spark:0.1.0"
    said["args"] = ["executor"]
    pod["metadata"]["name"] = "sluice-exec-1"
    return pod


def connect_on_pods() -> dict[str, Any]:
    component = yaml.safe_load((PODS / "kustomization.yaml").read_text())
    (patch,) = (one for one in component["patches"] if one["path"] == "connect.yaml")
    assert patch["target"] == {"kind": "Deployment", "name": "spark-connect"}
    found = copy.deepcopy(WORKLOADS["spark-connect"])
    for step in yaml.safe_load((PODS / "connect.yaml").read_text()):
        _patched(found, step)
    return found


def test_executors_as_pods_keep_to_the_schemas_and_take_the_standalone_clusters_place():
    rights = list(yaml.safe_load_all((PODS / "rights.yaml").read_text()))
    for release in RELEASES:
        for one in (connect_on_pods(), executor_pod(), *rights):
            kubernetes_validate.validate(one, release, strict=True)
    component = yaml.safe_load((PODS / "kustomization.yaml").read_text())
    gone = [one["target"] for one in component["patches"] if one["path"] == "nothing.yaml"]
    removed = {
        (one["kind"], one["metadata"]["name"])
        for one in OBJECTS
        for target in gone
        if target.items() <= {"kind": one["kind"], "name": one["metadata"]["name"]}.items()
    }
    assert removed == {
        ("Service", "spark-master"), ("PersistentVolumeClaim", "spark-master"),
        ("Deployment", "spark-master"), ("NetworkPolicy", "spark-master"),
        ("Deployment", "spark-worker"),
    }  # fmt: skip
    listed = {"kustomization.yaml", *component["resources"]}
    listed |= {one["path"] for one in component["patches"]}
    listed |= {file for one in component["configMapGenerator"] for file in one["files"]}
    assert {path.name for path in PODS.iterdir()} == listed


def test_a_pod_of_an_executor_has_what_a_worker_has_and_starts_one():
    (said,) = executor_pod()["spec"]["containers"]
    worker = WORKLOADS["spark-worker"]["spec"]["template"]
    assert executor_pod()["metadata"]["labels"] == worker["metadata"]["labels"]
    of_pipeline = {one["name"]: one for one in container("spark-worker")["env"]}
    assert said["env"] == [
        of_pipeline[name] for name in of_pipeline if name.startswith(("AWS_", "SLUICE_"))
    ]
    assert said["securityContext"] == container("spark-worker")["securityContext"]
    for key in ("securityContext", "automountServiceAccountToken", "terminationGracePeriodSeconds"):
        assert executor_pod()["spec"][key] == worker["spec"][key]
    entry = stages()["runtime"].last("ENTRYPOINT")
    assert json.loads(entry) == said["command"][:3]
    assert said["command"][3:] == ["sluice", "spark"]
    assert "executor" in spark_commands.commands


def test_settings_of_executors_as_pods_are_sparks_and_name_what_is_there():
    (said,) = connect_on_pods()["spec"]["template"]["spec"]["containers"]
    confs = dict(
        word.removeprefix("--conf=").split("=", 1)
        for word in said["args"]
        if word.startswith("--conf=")
    )
    jars = spark_home() / "jars"
    known = b""
    for jar, name in (
        ("spark-kubernetes_2.13", "org/apache/spark/deploy/k8s/Config$.class"),
        ("spark-core_2.13", "org/apache/spark/internal/config/package$.class"),
    ):
        (path,) = jars.glob(f"{jar}-*.jar")
        with zipfile.ZipFile(path) as archive:
            known += archive.read(name)
    assert not [key for key in confs if key.encode() not in known]
    names = {one["name"] for one in said["env"]}
    for value in confs.values():
        assert not value.startswith("$(") or value[2:-1] in names
    mounts = {one["name"]: one["mountPath"] for one in said["volumeMounts"]}
    template = Path(confs["spark.kubernetes.executor.podTemplateFile"])
    assert str(template.parent) == mounts["executor"] and (PODS / template.name).is_file()
    assert (
        executor_pod()["spec"]["containers"][0]["name"]
        == confs["spark.kubernetes.executor.podTemplateContainerName"]
    )
    script = Path(confs["spark.kubernetes.decommission.script"])
    drain = ROOT / script.relative_to(stages()["runtime"].last("WORKDIR"))
    assert os.access(drain, os.X_OK) and drain.read_text().startswith("#!/usr/bin/env python\n")


def test_a_worker_is_drained_before_it_ends():
    hook = container("spark-worker")["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["python", "-m", "deploy.start.drain"]
    assert pod("spark-worker")["terminationGracePeriodSeconds"] > IDLE_TIMEOUT_S


def _patched(document: Any, step: dict[str, Any]) -> None:
    """Do one step of a JSON patch (RFC 6902)."""
    *way, last = step["path"].strip("/").split("/")
    for name in way:
        document = document[int(name) if isinstance(document, list) else name]
    if step["op"] == "remove":
        del document[last]
    elif last == "-":
        document.append(step["value"])
    else:
        assert (last in document) == (step["op"] == "replace"), step
        document[last] = step["value"]


def test_a_pump_has_the_memory_for_the_largest_transaction_that_it_takes():
    """3.2 times its size while it is handed out, and what it takes in any case: tests of large
    transactions.
    """
    limits = (
        services(defaults())["pump-1"]["deploy"]["resources"]["limits"]["memory"],
        (container("pump")["resources"]["limits"]["memory"]),
    )
    needed = 3.2 * Config().max_message_size + (400 << 20)
    assert limits == ("8g", "8Gi") and needed <= 8 << 30
