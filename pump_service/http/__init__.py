"""The pump's pages over HTTP/1: its state, its metrics, what operators may ask and order."""

from sluice.pump_service.http import debug
from sluice.pump_service.http.api import HttpApi
from sluice.pump_service.http.http1 import Http1Connection, HttpRequest, HttpResponse

__all__ = ["Http1Connection", "HttpApi", "HttpRequest", "HttpResponse", "debug"]
