"""What `benchmarks/decision.py` is made of: models, measuring in a child, judging, reporting."""
