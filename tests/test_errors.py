"""Every error has one root, says whether trying again may help, and what else does."""

import ast
import builtins
import errno
import importlib
import inspect
import pkgutil
import re

import pytest

import sluice.errors
from sluice.errors import DefectError, MachineError, RequestError, Signal, SluiceError, ours
from tests.test_import_layers import PACKAGES, ROOT, modules, statements

OUTSIDE = {"deploy", "monitoring"}
"""What isn't part of the package `sluice`."""
PRODUCT = sorted(set(PACKAGES) - {"dags", "bench"})


def raised_by(room: str) -> set[type[BaseException]]:
    """The exception classes that the modules of a room define."""
    room = f"sluice.{room}" if room not in OUTSIDE else room
    names = [
        room,
        *(
            each.name
            for each in pkgutil.walk_packages(
                [str(ROOT / room.removeprefix("sluice."))], f"{room}."
            )
        ),
    ]
    found = set()
    for name in names:
        if "_pb" in name or name.endswith("__main__"):
            continue
        for _, each in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(each, BaseException) and each.__module__ == name:
                found.add(each)
    return found


@pytest.mark.parametrize(
    "room",
    # loading Great Expectations takes longer than all other rooms
    [pytest.param(r, marks=pytest.mark.slow) if r == "expectations" else r for r in PRODUCT],
)
def test_every_error_of_a_room_says_whether_it_passes_and_what_the_hint_is(room):
    for each in raised_by(room) - {SluiceError, Signal}:
        if issubclass(each, Signal):
            assert not issubclass(each, SluiceError)
            continue
        assert issubclass(each, SluiceError), f"{each} has another root"
        assert each.hint or each.transient is True, f"{each} leaves people alone"


@pytest.mark.parametrize("room", PRODUCT)
def test_no_signal_is_offered_at_a_door(room):
    doors = [
        room if room in OUTSIDE else f"sluice.{room}",
        *(
            f"sluice.etl.{each.name}"
            for each in pkgutil.iter_modules([str(ROOT / "etl")])
            if room == "etl" and each.ispkg
        ),
    ]
    for door in map(importlib.import_module, doors):
        for name in getattr(door, "__all__", ()):
            offered = getattr(door, name, None)  # None: a module that nobody has imported yet
            assert not (
                inspect.isclass(offered) and issubclass(offered, Signal) and offered is not Signal
            ), f"{door}.{name}"


def test_an_errors_own_hint_is_shown_once_and_that_of_its_class_is_not_repeated():
    class Broken(SluiceError):
        hint = "mend it"

    assert (str(Broken("it broke")), Broken("it broke").hint) == ("it broke", "mend it")
    own = Broken("it broke", hint="glue it")
    assert (str(own), own.hint) == ("it broke; glue it", "glue it")
    said = Broken("it broke: glue it, then go on", hint="glue it")
    assert (str(said), said.hint) == ("it broke: glue it, then go on", "glue it")
    assert not own.transient
    assert Broken("it broke", transient=True).transient


def test_what_the_operating_system_says_is_tried_again_and_names_what_helps():
    full = ours(OSError(errno.ENOSPC, "No space left on device", "/data/part"))
    assert isinstance(full, MachineError)
    assert full.transient
    assert "room" in full.hint
    assert "/data/part" in str(full)
    assert ours(ConnectionResetError()).transient


def test_a_programming_error_is_terminal_and_keeps_its_cause():
    cause = KeyError("commit_ts")
    defect = ours(cause)
    assert isinstance(defect, DefectError)
    assert not defect.transient
    assert defect.__cause__ is cause
    assert "KeyError" in str(defect)


def test_one_of_ours_stays_what_it_is():
    error = RequestError("no")
    assert ours(error) is error


def test_nothing_is_decided_by_the_name_of_a_class_or_module():
    """`type(error).__name__` may be shown to people.

    It isn't compared, and no set of names is asked.
    """
    wrong = set()
    for room in PRODUCT:
        for path in modules(ROOT / room):
            text = path.read_text(encoding="utf-8")
            if "__name__" not in text and "__module__" not in text:
                continue  # most modules, which needn't be parsed
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Compare) and any(
                    isinstance(each, ast.Attribute) and each.attr in ("__name__", "__module__")
                    for side in (node.left, *node.comparators)
                    for each in ast.walk(side)
                ):
                    wrong.add(f"{path.relative_to(ROOT)}:{node.lineno}")
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in ("startswith", "endswith")
                    and isinstance(node.func.value, ast.Attribute)
                    and node.func.value.attr in ("__name__", "__module__")
                ):
                    wrong.add(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def test_the_room_lists_what_it_offers():
    assert set(sluice.errors.__all__) == {
        "FAIL",
        "OK",
        "WARN",
        "CheckResult",
        "DefectError",
        "MachineError",
        "RequestError",
        "Signal",
        "SluiceError",
        "ours",
    }


def test_the_errors_that_docstrings_name_exist():
    known, named, texts = set(dir(builtins)), {}, {}
    for package in PACKAGES:
        for path in modules(ROOT / package):
            texts[path] = path.read_text(encoding="utf-8")
            for node in statements(texts[path]):
                match node:
                    case ast.ClassDef(name=name):
                        known.add(name)
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        for raised in re.findall(r"Raises ([^.]*)\.", text):
                            for name in re.findall(r"\b[A-Z]\w*Error\b", raised):
                                named[name] = path
    assert named
    elsewhere = named.keys() - known  # errors of libraries
    for text in texts.values():
        if any(name in text for name in elsewhere):
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Name(id=name) | ast.Attribute(attr=name):
                        known.add(name)
    assert not {name: path for name, path in named.items() if name not in known}
