"""Images on disk, prepared data sets, and batches for the trainer."""
