"""One small module per command."""
