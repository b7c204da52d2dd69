"""The archive of Spark's classes that a JVM starts from: Java takes it, and goes without one that
isn't of its jars.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sluice.devstack.launch.class_archive import JavaRuntime, archive, fits
from sluice.devstack.launch.service import StackPaths
from sluice.devstack.launch.spark import java_home, spark
from sluice.etl.spark.launch import spark_home


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaRuntime:
    """With one of Spark's jars."""
    folder = tmp_path_factory.mktemp("jars")
    (jar,) = (spark_home() / "jars").glob("slf4j-api-*.jar")
    shutil.copy(jar, folder)
    return JavaRuntime(str(java_home() / "bin" / "java"), f"{folder}/*")


@pytest.fixture
def archived(java: JavaRuntime, tmp_path: Path) -> Path:
    listed = tmp_path / "classes"
    listed.write_text("java/lang/Object\norg/slf4j/Logger\n")
    archive(java, listed, [], tmp_path / "share" / "some.jsa")
    return tmp_path / "share" / "some.jsa"


def loaded(java: JavaRuntime, archived: Path) -> str:
    """Where Java says that it has Spark's class from.

    It isn't a program, which is found after it was loaded.
    """
    done = java.run(f"-XX:SharedArchiveFile={archived}", "-Xlog:class+load", "org.slf4j.Logger")
    (line,) = (line for line in done.stdout.splitlines() if "] org.slf4j.Logger source: " in line)
    return line.partition("source: ")[2]


def test_a_jvm_has_its_classes_from_the_archive(java: JavaRuntime, archived: Path) -> None:
    assert fits(archived)
    assert loaded(java, archived).startswith("shared objects file")


def test_one_of_a_jar_that_has_changed_fits_no_more_and_java_goes_without(
    java: JavaRuntime, archived: Path
) -> None:
    (jar,) = Path(java.class_path).parent.glob("*.jar")
    os.utime(jar, (1, 1))
    assert not fits(archived)
    assert loaded(java, archived).endswith(jar.name)


def test_a_damaged_one_fits_no_more_and_java_goes_without(
    java: JavaRuntime, archived: Path
) -> None:
    archived.chmod(0o600)
    archived.write_bytes(b"damaged")
    assert not fits(archived)
    assert loaded(java, archived).endswith(".jar")


def test_there_is_none_until_one_is_made(tmp_path: Path) -> None:
    assert not fits(tmp_path / "some.jsa")


def test_the_class_path_of_the_stacks_spark_has_no_folder_of_files_with_which_java_uses_no_archive(
    tmp_path: Path,
) -> None:
    part = spark(StackPaths(tmp_path, {"spark": 1}, tmp_path), "-XX:SharedArchiveFile=/some.jsa")
    assert "SPARK_CONF_DIR" not in part.env
    assert not (spark_home() / "conf").exists()
    for jvm in ("driver", "executor"):
        (options,) = (
            word for word in part.argv if word.startswith(f"spark.{jvm}.extraJavaOptions=")
        )
        assert options.endswith(" -XX:SharedArchiveFile=/some.jsa")
    part.prepare()
    (configured,) = (
        word for word in options.split() if word.startswith("-Dlog4j2.configurationFile=file://")
    )
    assert Path(configured.partition("file://")[2]).read_text()
