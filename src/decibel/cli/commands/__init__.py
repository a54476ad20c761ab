"""The options of every command, one file each. They import what is heavy when they run, so that `--help` is instant."""
