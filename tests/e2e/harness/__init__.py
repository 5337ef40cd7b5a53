"""Starts real baton processes and talks to them; shared by tests/e2e and scripts/demo.

Only Python's standard library. Every wait has a deadline, every port is picked by the kernel.
"""
