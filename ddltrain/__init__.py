"""ddltrain: trains ResNets to classify images, from one machine to as many as MPI can reach."""

__version__ = "0.1.0"
