"""What Prometheus is told of pipelines: by an endpoint that lives through task changes, or pushed to a gateway."""

from etl.metrics.endpoint import Endpoint
from etl.metrics.gather import Gatherer
from etl.metrics.push import Pusher

__all__ = ["Endpoint", "Gatherer", "Pusher"]
