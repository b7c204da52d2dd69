"""Programs that a container starts, and the check whether it is healthy.

Thin: each reads its environment and its secrets, and becomes the program. docker-compose.yaml
states what a service waits for.
"""
