"""Benchmarks: ``python -m tests.benchmarks`` runs sessionctl beside its rivals and prints the ratios."""
