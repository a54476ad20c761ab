"""The commands, thin: options here, and what is heavy to import is imported by the command that needs it."""
