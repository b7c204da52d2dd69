"""Files for Prometheus, Alertmanager and Grafana."""
