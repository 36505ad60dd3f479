"""Reports on runs: statistics, learning curves, tables, comparisons and figures."""
