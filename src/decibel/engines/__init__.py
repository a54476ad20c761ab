"""Where nodes live."""
