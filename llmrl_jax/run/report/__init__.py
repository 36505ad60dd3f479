"""What a run reports: statistics, learning curves, tables, comparisons and pictures."""
