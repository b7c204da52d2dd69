"""What comes with Sluice for Prometheus, Alertmanager and Grafana."""
