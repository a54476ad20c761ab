"""What the commands do, apart from how they are asked: settings from files and flags, runs, comparisons, surveys."""
