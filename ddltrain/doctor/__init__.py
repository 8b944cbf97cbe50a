"""What this machine is, and what on it stands in the way of training."""
