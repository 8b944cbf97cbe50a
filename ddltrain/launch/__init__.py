"""Jobs on many hosts: which hosts, whether they fit, the command that starts the ranks, and going on after a fault."""
