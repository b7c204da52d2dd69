"""Export pipelines' metrics to Prometheus.

An endpoint lives through task changes, or the metrics are pushed to a gateway.
"""

from sluice.etl.operate.metrics.collector import PipelineCollector
from sluice.etl.operate.metrics.endpoint import MetricsEndpoint
from sluice.etl.operate.metrics.push import MetricsPusher

__all__ = ["MetricsEndpoint", "MetricsPusher", "PipelineCollector"]
