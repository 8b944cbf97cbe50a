"""How a buffer is going to be summed, for people."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """What `Engine.way_of` tells.

    Attributes:
        algorithm: a planner, "mpi", or "none" on one rank.
        description: the plan's own words.
        in_window: the buffer lies in memory that the ranks of the host share.
        num_rounds: messages that follow each other; None where the MPI library decides.
        sent_bytes: what the rank that sends most sends; None where the MPI library decides.
        wire: "bf16" or "fp16" where float32 is sent in 16 bits.
    """

    algorithm: str
    description: str
    in_window: bool
    num_rounds: int | None = 0
    sent_bytes: int | None = 0
    wire: str | None = None

    def words(self) -> str:
        """One line."""
        if self.algorithm == "none":
            return self.description
        sent = f", sent as {self.wire}" if self.wire else ""
        place = "in a shared window" if self.in_window else "in private memory"
        return f"{self.algorithm} ({self.description}){sent}, {place}"
