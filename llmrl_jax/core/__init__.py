"""What every part of the library shares: configurations and their resume rules, atomic files, checks and messages."""
