"""The one-machine stack's Airflow knows the pipelines beside the stack's own, and has room for
their tasks.
"""

import configparser
import importlib

airflow = importlib.import_module("sluice.devstack.launch.airflow")


def test_each_pipeline_in_the_folder_adds_room_for_the_tasks_that_run_all_the_time(tmp_path):
    config = configparser.ConfigParser(interpolation=None)
    config.read(airflow.airflow_cfg())
    alone = int(config["core"]["parallelism"])
    assert airflow._several(tmp_path / "pipelines") == {}
    (folder := tmp_path / "pipelines").mkdir()
    for name in ("shop", "search"):
        (folder / f"{name}.toml").touch()
    assert airflow._several(folder) == {
        "SLUICE_PIPELINES": str(folder), "AIRFLOW__CORE__PARALLELISM": str(alone + 2 * 3),
    }  # fmt: skip
