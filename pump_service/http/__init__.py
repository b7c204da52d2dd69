"""The pump's pages over HTTP/1: its state, its metrics, what operators may ask and order."""

from pump_service.http import debug
from pump_service.http.api import Api
from pump_service.http.http1 import Http1, Request, Response

__all__ = ["Api", "Http1", "Request", "Response", "debug"]
