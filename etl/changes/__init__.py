"""Landed windows become write plans: filters, routes, net effect, conflict groups, SQL text. Knows no server."""
