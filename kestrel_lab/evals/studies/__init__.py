"""Studies: prompt injection, judges, ablation of guidance files."""
