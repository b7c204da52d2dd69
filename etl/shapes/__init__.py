"""What changes look like when a sink gets them. A shape is one module with a function `steps`; a sink names the one it
takes.
"""

import importlib

from etl.shapes.segment import Segment, Shape, Timings

__all__ = ["SHAPES", "Segment", "Shape", "Timings", "find_shape"]

SHAPES = ("file_binlog", "groups", "kafka_binlog", "net", "newest")


def find_shape(name: str) -> Shape:
    """The shape's function. Raises ValueError for a name that is none."""
    if name not in SHAPES:
        raise ValueError(f"there is no shape {name!r}; known are {', '.join(SHAPES)}")
    shape: Shape = importlib.import_module(f"etl.shapes.{name}").steps
    return shape
