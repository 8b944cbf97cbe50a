"""The exceptions that users can see.

Each message is one line that names the file, key, rank or tensor at fault and the way out. Commands print the message without a
traceback and exit with `EXIT_USER_ERROR`; every other exception is a defect of ours and ends the job with its traceback.
"""

EXIT_USER_ERROR = 2
EXIT_STOPPED = 75  # a signal came and all is saved ("try again later"): --resume goes on
EXIT_KILLED = 130  # a second signal came, as shells say of Ctrl-C


class DdltrainError(Exception):
    """Base of all errors that a user can cause and mend.

    `on_all_ranks` tells that every rank raises this same error, so that the job can end without aborting MPI.
    """

    on_all_ranks = False


class RecipeError(DdltrainError):
    """A recipe, or an override on the command line, is wrong."""


class DataError(DdltrainError):
    """A data set, or the source of one, is missing, damaged or does not fit."""


class CheckpointError(DdltrainError):
    """A checkpoint or a file of weights is missing, damaged or does not fit."""


class RunError(DdltrainError):
    """A run folder is in use, holds another run, or cannot be written."""


class CommError(DdltrainError):
    """MPI is missing or mismatched, or ranks disagree."""


class DivergedError(DdltrainError):
    """The loss is no longer a finite number."""


class ClusterError(DdltrainError):
    """The emulated cluster cannot be made or used."""


class LaunchError(DdltrainError):
    """Hosts cannot be reached or do not fit each other, or the job cannot be placed on them."""
