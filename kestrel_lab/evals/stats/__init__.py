"""Statistics: intervals, tests, power, pass@k, change points, noisy bisection."""
