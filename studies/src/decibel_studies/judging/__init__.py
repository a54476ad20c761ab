"""What runs and claims are: traces, checks, verdicts, and what was registered before the runs."""
