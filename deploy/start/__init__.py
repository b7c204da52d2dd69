"""What a container starts and how it is asked whether it is healthy.

Thin: each reads its environment and its secrets, and becomes the program. Whom a service waits for
is said in docker-compose.yaml, not here.
"""
